/*
 * NPB CG: the largest eigenvalue of a sparse random matrix by the inverse power method, 25 conjugate-gradient steps
 * for each iteration. Verified by zeta. How ranks share matrix and vectors is drawn in cg_matrix.h; every vector lies
 * by grid columns, the same in all ranks of a column, so a dot product is added up along a row of ranks only.
 */
#include "cg_matrix.h"
#include "npb.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 25 };

static const struct cg_problem problems[NPB_CLASSES] = {
    {1400, 7, 15, 10, 8.5971775078648},      {7000, 8, 15, 12, 10.362595087124},
    {14000, 11, 15, 20, 17.130235054029},    {75000, 13, 75, 60, 22.712745482631},
    {150000, 15, 75, 110, 28.973605592845},
};

struct solver {
    struct cg_grid grid;
    struct cg_matrix matrix;
    MPI_Comm row_ranks, column_ranks;
    int length;                        /* of the vectors here: height * piece */
    double *x, *z, *p, *q, *r;         /* by columns */
    double *partial, *received;        /* by rows: a row of ranks adds these up */
};

static double sum_row(const struct solver *solver, double mine)
{
    double sum;

    MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, solver->row_ranks);
    return sum;
}

static double dot(const struct solver *solver, const double *a, const double *b)
{
    double even = 0, odd = 0;
    int i = 0;

    for (; i + 1 < solver->length; i += 2) {
        even += a[i] * b[i];
        odd += a[i + 1] * b[i + 1];
    }
    for (; i < solver->length; i++)
        even += a[i] * b[i];
    return sum_row(solver, even + odd);
}

static void multiply_block(const struct cg_matrix *matrix, const double *restrict in, double *restrict out)
{
    const int32_t *restrict columns = matrix->columns;
    const double *restrict values = matrix->values;

    for (int row = 0; row < matrix->row_count; row++) {
        double sums[4] = {0}; /* independent, so the processor need not wait for the last addition */
        int64_t k = matrix->row_starts[row], end = matrix->row_starts[row + 1];

        for (; k + 3 < end; k += 4) {
            sums[0] += values[k] * in[columns[k]];
            sums[1] += values[k + 1] * in[columns[k + 1]];
            sums[2] += values[k + 2] * in[columns[k + 2]];
            sums[3] += values[k + 3] * in[columns[k + 3]];
        }
        for (; k < end; k++)
            sums[0] += values[k] * in[columns[k]];
        out[row] = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    }
}

/* out = A in. Recursive halving along the row of ranks leaves one piece of the sum in each; columns share theirs. */
static void multiply(const struct solver *solver, const double *in, double *out)
{
    int piece = solver->grid.piece, half = solver->grid.width / 2 * piece;
    double *kept = solver->partial;

    multiply_block(&solver->matrix, in, solver->partial);
    for (int bit = solver->grid.width / 2; bit; bit /= 2, half /= 2) {
        int partner = solver->grid.column ^ bit;
        double *sent = kept + half;

        if (solver->grid.column & bit) {
            sent = kept;
            kept += half;
        }
        MPI_Sendrecv(sent, half, MPI_DOUBLE, partner, 1, solver->received, half, MPI_DOUBLE, partner, 1,
                     solver->row_ranks, MPI_STATUS_IGNORE);
        for (int i = 0; i < half; i++)
            kept[i] += solver->received[i];
    }
    MPI_Allgather(kept, piece, MPI_DOUBLE, out, piece, MPI_DOUBLE, solver->column_ranks);
}

/* A z = x, approximately; returns the norm of the residual, ||x - A z||. */
static double solve(struct solver *solver)
{
    double *restrict z = solver->z, *restrict p = solver->p, *restrict q = solver->q, *restrict r = solver->r;
    double rho, sum = 0;
    int length = solver->length;

    memset(z, 0, sizeof *z * (size_t)length);
    memcpy(r, solver->x, sizeof *r * (size_t)length);
    memcpy(p, solver->x, sizeof *p * (size_t)length);
    rho = dot(solver, r, r);
    for (int step = 0; step < STEPS; step++) {
        double alpha, beta, before = rho;

        multiply(solver, p, q);
        alpha = rho / dot(solver, p, q);
        for (int i = 0; i < length; i++) {
            z[i] += alpha * p[i];
            r[i] -= alpha * q[i];
        }
        rho = dot(solver, r, r);
        beta = rho / before;
        for (int i = 0; i < length; i++)
            p[i] = r[i] + beta * p[i];
    }
    multiply(solver, z, q);
    for (int i = 0; i < length; i++)
        sum += (solver->x[i] - q[i]) * (solver->x[i] - q[i]);
    return sqrt(sum_row(solver, sum));
}

/* One iteration of the power method; returns zeta. */
static double iterate(struct solver *solver, double shift, double *rest)
{
    double mine[2] = {0}, sums[2], scale;

    *rest = solve(solver);
    for (int i = 0; i < solver->length; i++) {
        mine[0] += solver->x[i] * solver->z[i];
        mine[1] += solver->z[i] * solver->z[i];
    }
    MPI_Allreduce(mine, sums, 2, MPI_DOUBLE, MPI_SUM, solver->row_ranks);
    scale = 1 / sqrt(sums[1]);
    for (int i = 0; i < solver->length; i++)
        solver->x[i] = scale * solver->z[i];
    return shift + 1 / sums[0];
}

/* x = 1, but 0 where padding makes the pieces equal. */
static void start_vector(struct solver *solver, int n)
{
    const struct cg_grid *grid = &solver->grid;

    for (int i = 0; i < solver->length; i++)
        solver->x[i] = (i / grid->piece * grid->width + grid->column) * grid->piece + i % grid->piece < n;
}

static void set_up(struct solver *solver, const struct cg_problem *problem)
{
    struct cg_grid *grid = &solver->grid;
    double **vectors[] = {&solver->x, &solver->z, &solver->p, &solver->q, &solver->r};
    size_t rows;

    grid->height = grid->width = 1;
    while (grid->height * grid->width < npb_ranks())
        *(grid->width == grid->height ? &grid->width : &grid->height) *= 2;
    grid->row = npb_rank() / grid->width;
    grid->column = npb_rank() % grid->width;
    grid->piece = (problem->n + npb_ranks() - 1) / npb_ranks();
    npb_require_memory(cg_matrix_bytes(grid, problem));
    MPI_Comm_split(MPI_COMM_WORLD, grid->row, grid->column, &solver->row_ranks);
    MPI_Comm_split(MPI_COMM_WORLD, grid->column, grid->row, &solver->column_ranks);
    cg_matrix_make(&solver->matrix, grid, problem);
    solver->length = grid->height * grid->piece;
    rows = (size_t)solver->matrix.row_count;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        *vectors[i] = npb_allocate((size_t)solver->length, sizeof(double));
    solver->partial = npb_allocate(rows, sizeof(double));
    solver->received = npb_allocate(rows / 2 + 1, sizeof(double));
}

static void tear_down(struct solver *solver)
{
    double *arrays[] = {solver->x, solver->z, solver->p, solver->q, solver->r, solver->partial, solver->received};

    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    free(solver->matrix.row_starts);
    free(solver->matrix.columns);
    free(solver->matrix.values);
    MPI_Comm_free(&solver->row_ranks);
    MPI_Comm_free(&solver->column_ranks);
}

int main(int argc, char **argv)
{
    struct npb_result result = {.operations = "floating point"};
    const struct cg_problem *problem;
    struct solver solver;
    double zeta = 0, rest, fill;

    npb_init(&argc, &argv, "CG");
    problem = &problems[npb_class_index()];
    npb_require_power_of_two(1024);
    set_up(&solver, problem);
    start_vector(&solver, problem->n);
    iterate(&solver, problem->shift, &rest);
    start_vector(&solver, problem->n);

    npb_start();
    npb_say("   iteration           ||r||                 zeta\n");
    for (int iteration = 1; iteration <= problem->iterations; iteration++) {
        zeta = iterate(&solver, problem->shift, &rest);
        npb_say("    %5d       %20.14E%20.13f\n", iteration, rest, zeta);
    }
    result.seconds = npb_stop();
    tear_down(&solver);

    result.verified = npb_close("Zeta", zeta, problem->zeta, 1e-10);
    snprintf(result.size, sizeof result.size, "%d", problem->n);
    result.iterations = problem->iterations;
    fill = problem->nonzeros * (problem->nonzeros + 1);
    result.mop = 2e-6 * problem->iterations * problem->n * (3 + fill + STEPS * (5 + fill) + 3);
    return npb_report(&result);
}
