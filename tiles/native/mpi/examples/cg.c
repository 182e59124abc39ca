/*
 * cg [SIDE STEPS]: conjugate gradients for the Laplacian of a SIDE x SIDE grid, rows of the grid divided among ranks.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks, side, rows; /* rows: of this rank */
static double *x, *r, *p, *q;       /* p has a row of the neighbours before and after */

static double dot(const double *a, const double *b)
{
    double sum = 0, all;

    for (int i = 0; i < rows * side; i++)
        sum += a[i] * b[i];
    MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

/* q = A p, after the rows at the edges have been exchanged. */
static void multiply(void)
{
    int before = rank > 0 ? rank - 1 : MPI_PROC_NULL, after = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;

    MPI_Sendrecv(p + side, side, MPI_DOUBLE, before, 1, p + (rows + 1) * side, side, MPI_DOUBLE, after, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(p + rows * side, side, MPI_DOUBLE, after, 2, p, side, MPI_DOUBLE, before, 2, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < side; column++) {
            const double *at = p + (row + 1) * side + column;

            q[row * side + column] = 4 * at[0] - at[-side] - at[side] - (column ? at[-1] : 0) -
                                     (column < side - 1 ? at[1] : 0);
        }
}

static double *make(int count)
{
    double *vector = malloc((size_t)count * sizeof(*vector));

    if (!vector)
        MPI_Abort(MPI_COMM_WORLD, 2);
    for (int i = 0; i < count; i++)
        vector[i] = 0;
    return vector;
}

int main(int argc, char **argv)
{
    int steps = argc > 2 ? atoi(argv[2]) : 60, count;
    double rho, alpha, before;

    side = argc > 1 ? atoi(argv[1]) : 64;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    rows = side * (rank + 1) / ranks - side * rank / ranks;
    count = rows * side;
    x = make(count);
    r = make(count);
    q = make(count);
    p = make(count + 2 * side);
    for (int i = 0; i < count; i++)
        r[i] = p[side + i] = 1;
    rho = dot(r, r);
    for (int step = 0; step < steps; step++) {
        multiply();
        alpha = rho / dot(p + side, q);
        for (int i = 0; i < count; i++) {
            x[i] += alpha * p[side + i];
            r[i] -= alpha * q[i];
        }
        before = rho;
        rho = dot(r, r);
        for (int i = 0; i < count; i++)
            p[side + i] = r[i] + rho / before * p[side + i];
    }
    rho = dot(x, x);
    if (rank == 0)
        printf("cg %d x %d, %d steps: norm of the solution %.6f\n", side, side, steps, sqrt(rho));
    MPI_Finalize();
    return 0;
}
