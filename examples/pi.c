/*
 * Pi by the midpoint rule, in slices, so that there is time to move a node while it runs.
 *
 *   mpicc -O2 -o pi examples/pi.c
 *   wherry run hello -n 4 -- ./pi 200
 *
 * The argument is the number of slices of ten million intervals; rank 0 prints the sum after every tenth of them.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { INTERVALS = 10000000 };

static double integrate_slice(long slice, long slices, int rank, int ranks)
{
    double width = 1.0 / ((double)slices * INTERVALS), sum = 0.0;

    for (long i = rank; i < INTERVALS; i += ranks) {
        double x = width * ((double)slice * INTERVALS + (double)i + 0.5);
        sum += 4.0 / (1.0 + x * x);
    }
    return sum * width;
}

int main(int argc, char **argv)
{
    long slices = argc > 1 ? strtol(argv[1], NULL, 10) : 20;
    char node[MPI_MAX_PROCESSOR_NAME];
    double pi = 0.0;
    int rank, ranks, length;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Get_processor_name(node, &length);
    printf("rank %d of %d on %s\n", rank, ranks, node);
    fflush(stdout);
    for (long slice = 0; slice < slices; slice++) {
        double mine = integrate_slice(slice, slices, rank, ranks), all = 0.0;

        MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        pi += all;
        if (rank == 0 && slices >= 10 && (slice + 1) % (slices / 10) == 0) {
            printf("%3ld %% done, sum so far %.12f\n", 100 * (slice + 1) / slices, pi);
            fflush(stdout);
        }
    }
    if (rank == 0)
        printf("pi = %.12f, error %.1e\n", pi, fabs(pi - acos(-1.0)));
    MPI_Finalize();
    return 0;
}
