/* See cpu.h. Intel SDM volume 1, chapter 13. */
#include "cpu.h"

#include <cpuid.h>

#define COMPONENTS 0xe7u /* x87 0, SSE 1, AVX 2, opmask 5, upper ZMM 6, ZMM16-31 7 */
#define LEGACY_AND_HEADER 576u

uint32_t cpu_xfeatures(void)
{
    uint32_t a, b, c, d;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return a & COMPONENTS;
}

uint32_t cpu_xsize(void)
{
    uint32_t features = cpu_xfeatures(), end = LEGACY_AND_HEADER, size, offset, c, d;

    for (uint32_t component = 2; component < 8; component++) {
        if (!(features >> component & 1))
            continue;
        __cpuid_count(0xd, component, size, offset, c, d);
        if (offset + size > end)
            end = offset + size;
    }
    return end;
}
