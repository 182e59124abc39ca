/*
 * ticks: the clock of the library. The processor's counter where it runs at one rate for ever (9 ns a look), else the
 * kernel's clock (22 ns and more). A move may change it and its rate: a negative or impossible difference is to be
 * taken for nothing.
 */
#ifndef WHERRY_MPI_TICKS_H
#define WHERRY_MPI_TICKS_H

#include "hidden.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

extern bool counter_is_steady HIDDEN;

static inline uint64_t nanoseconds(clockid_t clock)
{
    struct timespec time;

    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
}

static inline uint64_t ticks(void)
{
#if defined(__x86_64__)
    if (__builtin_expect(counter_is_steady, true))
        return __rdtsc();
#endif
    return nanoseconds(CLOCK_MONOTONIC);
}

#endif
