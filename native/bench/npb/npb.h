/*
 * Common to the NAS Parallel Benchmarks here: start, refusals, clock, random numbers, comparison and report.
 *
 * Own implementation of the NPB specification (Bailey et al., RNR-94-007, with the classes of NPB 3), not NASA's
 * source: results are "own implementation, class X". A program is `npb-KERNEL-MPI CLASS` under that MPI's mpirun.
 * Exit codes: 0 verified, 1 verification failed, 2 refused before anything ran, with one line that shows what to type.
 *
 *   npb_init(&argc, &argv, "CG");                  every rank; reads the class
 *   npb_require_power_of_two(max);                 or npb_require_square(max)
 *   npb_require_memory(bytes of this rank);
 *   ... allocate, set up, one untimed iteration ...
 *   npb_start();  ... the timed part ...;  result.seconds = npb_stop();
 *   result.verified = npb_close("Zeta", zeta, right, 1e-10);
 *   return npb_report(&result);                    prints, ends MPI, gives the exit code
 */
#ifndef WHERRY_BENCH_NPB_H
#define WHERRY_BENCH_NPB_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdnoreturn.h>

enum { NPB_CLASSES = 5 }; /* S, W, A, B, C: the order of every table of classes */

struct npb_result {
    char size[48]; /* "1400", "64x64x64" */
    int iterations;
    double seconds;         /* of this rank; the largest of all ranks is reported */
    double mop;             /* 1e6 operations of all ranks in the timed part, by the specification's formula */
    const char *operations; /* "floating point", "random numbers generated", "keys ranked" */
    bool verified;          /* of this rank; successful only when all are */
};

/* harness.c: start, clock and report */
void npb_init(int *argc, char ***argv, const char *kernel);
int npb_rank(void);
int npb_ranks(void);
char npb_class(void);       /* 'S', 'W', 'A', 'B' or 'C' */
int npb_class_index(void);  /* 0 to NPB_CLASSES - 1 */
double npb_start(void);     /* begins the timed part together; gives the time of day */
double npb_stop(void);      /* s of this rank since npb_start */
double npb_time(void);      /* s since the epoch */
void npb_say(const char *format, ...) __attribute__((format(printf, 1, 2))); /* rank 0 only; may wait a little */
bool npb_close(const char *what, double got, double right, double tolerance); /* relative; NaN is never close */
int npb_report(const struct npb_result *result);

/* harness.c: functions for a run. Each returns, or ends all ranks with exit code 2; all ranks call together. */
noreturn void npb_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
void npb_require_power_of_two(int most); /* ranks */
void npb_require_square(int most);
void npb_require_at_most(int most);
void npb_require_memory(double bytes);
void *npb_allocate(size_t count, size_t size); /* zeroed, 64-byte aligned; ends the job when there is none */

/* Random numbers of the specification (section 2.3): x <- 5^13 x mod 2^46, the value is x 2^-46 in (0, 1). */
#define NPB_MULTIPLIER UINT64_C(1220703125)
#define NPB_SEED UINT64_C(314159265) /* of all but EP */
#define NPB_MODULUS_MASK ((UINT64_C(1) << 46) - 1)

static inline double npb_random(uint64_t *x)
{
    *x = *x * NPB_MULTIPLIER & NPB_MODULUS_MASK; /* exact: 2^46 divides 2^64 */
    return (double)(int64_t)*x * 0x1p-46;
}

uint64_t npb_random_skip(uint64_t x, uint64_t count); /* random.c: the state after `count` numbers */

#endif
