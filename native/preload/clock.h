/*
 * The clock of the library, in nanoseconds. A move may set it back: counts that use it then begin anew.
 */
#ifndef WHERRY_CLOCK_H
#define WHERRY_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
}

#endif
