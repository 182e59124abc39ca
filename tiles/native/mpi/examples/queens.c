/* queens [N]: counts the ways to place N queens; rank 0 hands out the first two rows to who asks, by any source. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define ASK 1
#define WORK 2
#define STOP 3

static long count(unsigned all, unsigned columns, unsigned left, unsigned right)
{
    long found = 0;

    if (columns == all)
        return 1;
    for (unsigned open = all & ~(columns | left | right); open; open &= open - 1) {
        unsigned queen = open & -open;

        found += count(all, columns | queen, (left | queen) << 1, (right | queen) >> 1);
    }
    return found;
}

/* Queens in the columns first and second of the first two rows. */
static long begin(int n, int first, int second)
{
    unsigned a = 1u << first, b = 1u << second;

    if (first == second || first == second + 1 || first == second - 1)
        return 0;
    return count((1u << n) - 1, a | b, (a << 1 | b) << 1, (a >> 1 | b) >> 1);
}

int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 9, rank, ranks, task, tasks, stopped = 0;
    long mine = 0, all;
    MPI_Status status;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    tasks = n * n;
    if (rank == 0) {
        for (task = 0; ranks > 1 && stopped < ranks - 1; task++) {
            MPI_Probe(MPI_ANY_SOURCE, ASK, MPI_COMM_WORLD, &status);
            MPI_Recv(NULL, 0, MPI_INT, status.MPI_SOURCE, ASK, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(&task, 1, MPI_INT, status.MPI_SOURCE, task < tasks ? WORK : STOP, MPI_COMM_WORLD);
            stopped += task >= tasks;
        }
        for (task = 0; ranks == 1 && task < tasks; task++)
            mine += begin(n, task / n, task % n);
    } else {
        for (;;) {
            MPI_Send(NULL, 0, MPI_INT, 0, ASK, MPI_COMM_WORLD);
            MPI_Recv(&task, 1, MPI_INT, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            if (status.MPI_TAG == STOP)
                break;
            mine += begin(n, task / n, task % n);
        }
    }
    MPI_Reduce(&mine, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d queens: %ld\n", n, all);
    MPI_Finalize();
    return 0;
}
