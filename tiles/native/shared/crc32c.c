/* See crc32c.h. */
#include "crc32c.h"

#include <nmmintrin.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* reflected */

uint32_t crc32c_plain(uint32_t crc, const void *bytes, size_t count)
{
    crc = ~crc;
    for (const uint8_t *at = bytes; count--; at++) {
        crc ^= *at;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (POLYNOMIAL & -(crc & 1));
    }
    return ~crc;
}

__attribute__((target("sse4.2"))) static uint32_t crc32c_sse(uint32_t crc, const uint8_t *at, size_t count)
{
    uint64_t word, wide = (uint32_t)~crc;

    for (; count >= sizeof(word); at += sizeof(word), count -= sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        wide = _mm_crc32_u64(wide, word);
    }
    for (; count; at++, count--)
        wide = _mm_crc32_u8((uint32_t)wide, *at);
    return ~(uint32_t)wide;
}

uint32_t crc32c(uint32_t crc, const void *bytes, size_t count)
{
    return __builtin_cpu_supports("sse4.2") ? crc32c_sse(crc, bytes, count) : crc32c_plain(crc, bytes, count);
}
