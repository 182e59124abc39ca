/*
 * mpi_cost ROUNDS CALLS: the least nanoseconds of a call of MPI_Iprobe and of MPI_Send to nobody, in so many rounds of so
 * many calls of each: the overhead of a library that wraps them is the difference to a run without it.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(int count, char **words)
{
    long rounds = count == 3 ? atol(words[1]) : 0, calls = count == 3 ? atol(words[2]) : 0;
    double probe = 1e9, send = 1e9, begin, took;
    int found, value = 0;

    MPI_Init(NULL, NULL);
    for (long round = 0; round < rounds; round++) {
        begin = now();
        for (long i = 0; i < calls; i++)
            MPI_Iprobe(MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
        took = (now() - begin) / (double)calls;
        probe = took < probe ? took : probe;
        begin = now();
        for (long i = 0; i < calls; i++)
            MPI_Send(&value, 2, MPI_INT, MPI_PROC_NULL, 1, MPI_COMM_WORLD);
        took = (now() - begin) / (double)calls;
        send = took < send ? took : send;
    }
    printf("{\"probe\": %.1f, \"send\": %.1f}\n", probe, send);
    MPI_Finalize();
    return 0;
}
