/*
 * libwherry-yield.so: makes sched_yield() of a rank that waits let the ranks of other nodes run (LD_PRELOAD).
 *
 * Open MPI's ranks poll, and yield between two looks where processors are shared. The kernel yields among the
 * processes of one cgroup only; every node is one, so a waiting rank would keep its processor to the end of its
 * slice, some milliseconds, while the rank that it waits for is ready.
 *
 *      look yield look yield ... look yield | look sleep look sleep ...     a message: look, compute, ...
 *      \________ SPINS yields _____________/ \__ NAP each __________/       \_ more than GAP without a yield: anew
 *
 * Invariant: sched_yield() still returns 0 at once or soon, changes no errno, and touches nothing but this thread's
 * two variables; a signal ends a nap.
 */
#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SPINS = 20,          /* yields that are only that: an answer from the next processor comes within them */
    NAP = 50 * 1000,     /* nanoseconds; the kernel's timer slack adds as much */
    GAP = 200 * 1000,    /* nanoseconds without a yield after which the rank was not waiting meanwhile */
};

static _Thread_local uint64_t last;
static _Thread_local unsigned spins;

static uint64_t now(void) {
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
}

int sched_yield(void) {
    static const struct timespec nap = {.tv_nsec = NAP};
    int before = errno;

    if (now() - last > GAP)
        spins = 0;
    if (++spins <= SPINS)
        syscall(SYS_sched_yield);
    else
        nanosleep(&nap, NULL);
    last = now();
    errno = before;
    return 0;
}
