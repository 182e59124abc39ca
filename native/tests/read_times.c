/* See read_times.h. */
#include "read_times.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    int64_t first = *(const int64_t *)a, second = *(const int64_t *)b;

    return first < second ? -1 : first > second;
}

void measure_reads(void (*read)(uint64_t *random), uint64_t seed)
{
    enum { READS = 2000 };
    static int64_t took[READS];
    struct timespec pause = {.tv_nsec = 20000};
    int64_t begin = now_ns();

    for (int i = 0; i < READS; i++) {
        int64_t start = now_ns();

        read(&seed);
        took[i] = now_ns() - start;
        nanosleep(&pause, NULL);
    }
    begin = now_ns() - begin;
    qsort(took, READS, sizeof(*took), by_size);
    printf("%d reads in %" PRId64 " ms; ns: median %" PRId64 ", 90 %% %" PRId64 ", 99 %% %" PRId64 ", most %" PRId64
           "\n", READS, begin / 1000000, took[READS / 2], took[READS * 9 / 10], took[READS * 99 / 100],
           took[READS - 1]);
}
