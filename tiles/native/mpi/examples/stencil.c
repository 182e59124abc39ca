/* stencil [SIDE STEPS]: heat on a SIDE x SIDE plate, strips of it exchanged beside the computation of their inside. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int side, rows;

static void step(const double *from, double *to, int first, int last)
{
    for (int row = first; row <= last; row++)
        for (int column = 1; column < side - 1; column++) {
            const double *at = from + row * side + column;

            to[row * side + column] = 0.25 * (at[-1] + at[1] + at[-side] + at[side]);
        }
}

int main(int argc, char **argv)
{
    int steps = argc > 2 ? atoi(argv[2]) : 100, rank, ranks, before, after, count;
    double *now, *next, heat = 0, *heats;
    MPI_Request requests[4];

    side = argc > 1 ? atoi(argv[1]) : 64;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    before = rank > 0 ? rank - 1 : MPI_PROC_NULL;
    after = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;
    rows = side * (rank + 1) / ranks - side * rank / ranks;
    count = (rows + 2) * side;
    now = malloc((size_t)count * sizeof(*now));
    next = malloc((size_t)count * sizeof(*next));
    heats = malloc((size_t)ranks * sizeof(*heats));
    if (!now || !next || !heats)
        MPI_Abort(MPI_COMM_WORLD, 2);
    for (int i = 0; i < count; i++)
        now[i] = next[i] = rank == 0 && i < side ? 100 : 0; /* the upper edge is hot */
    for (int turn = 0; turn < steps; turn++) {
        double *swap = now;

        MPI_Irecv(now, side, MPI_DOUBLE, before, turn, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(now + (rows + 1) * side, side, MPI_DOUBLE, after, turn, MPI_COMM_WORLD, &requests[1]);
        MPI_Isend(now + side, side, MPI_DOUBLE, before, turn, MPI_COMM_WORLD, &requests[2]);
        MPI_Isend(now + rows * side, side, MPI_DOUBLE, after, turn, MPI_COMM_WORLD, &requests[3]);
        step(now, next, 2, rows - 1);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
        step(now, next, 1, 1);
        step(now, next, rows, rows);
        if (rank == 0)
            for (int column = 0; column < side; column++)
                next[column] = 100;
        now = next;
        next = swap;
    }
    for (int i = side; i < (rows + 1) * side; i++)
        heat += now[i];
    MPI_Gather(&heat, 1, MPI_DOUBLE, heats, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        for (int other = 1; other < ranks; other++)
            heat += heats[other];
        printf("stencil %d x %d, %d steps: heat %.6f\n", side, side, steps, heat);
    }
    MPI_Finalize();
    return 0;
}
