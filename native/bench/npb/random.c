/* Jump ahead in the random numbers of npb.h: 5^13 to the power n, modulo 2^46, in log2 n steps. */
#include "npb.h"

uint64_t npb_random_skip(uint64_t x, uint64_t count)
{
    uint64_t power = NPB_MULTIPLIER;

    for (; count; count >>= 1) {
        if (count & 1)
            x = x * power & NPB_MODULUS_MASK;
        power = power * power & NPB_MODULUS_MASK;
    }
    return x;
}
