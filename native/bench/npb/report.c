/* Start and end of every NPB program: its class, its clock, the comparison, and the block that NPB's parsers know. */
#include "npb.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char class_letters[] = "SWABC";

static struct {
    const char *kernel;
    int rank, ranks, class_index;
    double start;
} run;

int npb_rank(void)
{
    return run.rank;
}

int npb_ranks(void)
{
    return run.ranks;
}

char npb_class(void)
{
    return class_letters[run.class_index];
}

int npb_class_index(void)
{
    return run.class_index;
}

/* Time of day: inside a node that was moved, other clocks hide the time that it stood still. */
double npb_time(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double npb_start(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    return run.start = npb_time();
}

double npb_stop(void)
{
    return npb_time() - run.start;
}

/*
 * What follows within 50 ms waits for the next line or the end: each flush wakes the launcher, which, where ranks
 * outnumber processors, takes one from a rank that the others wait for.
 */
void npb_say(const char *format, ...)
{
    static double flushed;
    double since = npb_time() - flushed; /* s; negative when the clock was set back */
    va_list arguments;

    if (run.rank != 0)
        return;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    if (since >= 0 && since < 0.05)
        return;
    fflush(stdout);
    flushed = npb_time();
}

void npb_init(int *argc, char ***argv, const char *kernel)
{
    const char *letter = NULL;

    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &run.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &run.ranks);
    run.kernel = kernel;
    if (*argc == 2 && strlen((*argv)[1]) == 1)
        letter = strchr(class_letters, toupper((unsigned char)(*argv)[1][0]));
    if (!letter)
        npb_refuse("npb: the class is missing or unknown; type one of S, W, A, B, C, as in: %s S", (*argv)[0]);
    run.class_index = (int)(letter - class_letters);
    npb_say("\n NAS Parallel Benchmarks (own implementation of the specification) -- %s Benchmark\n\n"
            " Class %c, total number of processes: %d\n\n", kernel, npb_class(), run.ranks);
}

bool npb_close(const char *what, double got, double right, double tolerance)
{
    double error = fabs((got - right) / right);
    bool close = error <= tolerance; /* false for NaN */

    npb_say(" %-12s %21.13E  relative error %9.2E%s\n", what, got, error, close ? "" : "  FAILURE");
    return close;
}

int npb_report(const struct npb_result *result)
{
    double mine[2] = {result->seconds, result->verified ? 0 : 1}, largest[2]; /* s, failed */
    double rate;

    MPI_Allreduce(mine, largest, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    rate = largest[0] > 0 ? result->mop / largest[0] : 0;
    npb_say("\n\n %s Benchmark Completed.\n", run.kernel);
    npb_say(" Class           = %24c\n", npb_class());
    npb_say(" Size            = %24s\n", result->size);
    npb_say(" Iterations      = %24d\n", result->iterations);
    npb_say(" Time in seconds = %24.4f\n", largest[0]);
    npb_say(" Total processes = %24d\n", run.ranks);
    npb_say(" Active processes= %24d\n", run.ranks);
    npb_say(" Mop/s total     = %24.2f\n", rate);
    npb_say(" Mop/s/process   = %24.2f\n", rate / run.ranks);
    npb_say(" Operation type  = %24s\n", result->operations);
    npb_say(" Verification    = %24s\n", largest[1] > 0 ? "UNSUCCESSFUL" : "SUCCESSFUL");
    npb_say(" Version         = %24s\n\n", "wherry");
    fflush(stdout);
    MPI_Finalize();
    return largest[1] > 0;
}
