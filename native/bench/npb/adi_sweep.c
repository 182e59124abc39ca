/* Lines of one direction through the cells of all ranks (adi_sweep.h), and the main program that SP and BT share. */
#include "adi_sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The directions across d: pairs are made along `fast` (of x and y the nearest in memory). */
struct across {
    int fast, slow;
};

static struct across across_of(int d)
{
    return (struct across){d == 0 ? 1 : 0, d == 2 ? 1 : 2};
}

static int inner(const struct cfd_cell *cell, int d)
{
    return cell->hi[d] - cell->lo[d];
}

static size_t line_pairs(const struct cfd_cell *cell, int d)
{
    struct across a = across_of(d);

    return (size_t)((inner(cell, a.fast) + 1) / 2) * (size_t)inner(cell, a.slow);
}

static struct adi_line line_at(const struct cfd_cell *cell, int d, int fast, int slow)
{
    struct across a = across_of(d);
    int at[3];
    ptrdiff_t second = fast + 1 < cell->hi[a.fast];

    at[d] = cell->lo[d];
    at[a.fast] = fast;
    at[a.slow] = slow;
    return (struct adi_line){
        .first = cell->start[d] + cell->lo[d],
        .count = inner(cell, d),
        .row = cell->row,
        .u_step = cell->u_step[d],
        .r_step = cell->r_step[d],
        .u_lane = second * cell->u_step[a.fast],
        .r_lane = second * cell->r_step[a.fast],
        .u = cfd_u(cell, at[0], at[1], at[2]),
        .r = cfd_r(cell, at[0], at[1], at[2]),
    };
}

static size_t row_pairs_of_cell(const struct adi_sweep *sweep, const struct cfd_cell *cell, int d)
{
    return line_pairs(cell, d) * (size_t)inner(cell, d) * sweep->method->row_pairs;
}

/* All lines of one cell; rows of a cell that does not turn round are kept, and so are `rows` after its last line. */
static void go_through(struct adi_sweep *sweep, const struct cfd *cfd, int d, int stage, pair *rows, bool forward,
                       bool backward)
{
    const struct adi_method *method = sweep->method;
    const struct cfd_cell *cell = cfd->at[d][stage];
    struct across a = across_of(d);
    size_t line_rows = forward && backward ? 0 : (size_t)inner(cell, d) * method->row_pairs;
    pair *ahead = sweep->carry, *back = forward ? sweep->other : sweep->carry;

    for (int slow = cell->lo[a.slow]; slow < cell->hi[a.slow]; slow++)
        for (int fast = cell->lo[a.fast]; fast < cell->hi[a.fast]; fast += 2) {
            struct adi_line line = line_at(cell, d, fast, slow);

            if (forward)
                method->forward[d](cfd, &line, rows, ahead);
            if (backward)
                method->backward[d](cfd, &line, rows, back);
            ahead += method->forward_pairs;
            back += method->backward_pairs;
            rows += line_rows;
        }
}

static void swap_carries(struct adi_sweep *sweep)
{
    pair *carry = sweep->carry;

    sweep->carry = sweep->other;
    sweep->other = carry;
}

/* Every rank has a cell in every stage, so all send and receive at once. */
static void pass_carries(struct adi_sweep *sweep, const struct cfd *cfd, int d, int stage, int way)
{
    int target = way > 0 ? cfd->next[d] : cfd->previous[d], source = way > 0 ? cfd->previous[d] : cfd->next[d];
    size_t doubles = 2 * (way > 0 ? sweep->method->forward_pairs : sweep->method->backward_pairs);

    MPI_Sendrecv(sweep->carry, (int)(doubles * line_pairs(cfd->at[d][stage], d)), MPI_DOUBLE, target, d, sweep->other,
                 (int)(doubles * line_pairs(cfd->at[d][stage + way], d)), MPI_DOUBLE, source, d, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    swap_carries(sweep);
}

void adi_solve(struct adi_sweep *sweep, const struct cfd *cfd, int d)
{
    int last = cfd->parts[d] - 1;
    pair *rows = sweep->rows;

    memset(sweep->carry, 0, sweep->carry_pairs * sizeof(pair));
    for (int stage = 0; stage < last; stage++) {
        go_through(sweep, cfd, d, stage, rows, true, false);
        pass_carries(sweep, cfd, d, stage, 1);
        rows += row_pairs_of_cell(sweep, cfd->at[d][stage], d);
    }
    memset(sweep->other, 0, sweep->carry_pairs * sizeof(pair));
    go_through(sweep, cfd, d, last, rows, true, true);
    swap_carries(sweep);
    for (int stage = last; stage > 0; stage--) {
        pass_carries(sweep, cfd, d, stage, -1);
        rows -= row_pairs_of_cell(sweep, cfd->at[d][stage - 1], d);
        go_through(sweep, cfd, d, stage - 1, rows, false, true);
    }
}

void adi_plan(struct adi_sweep *sweep, const struct adi_method *method, const struct cfd *cfd)
{
    size_t most = method->forward_pairs > method->backward_pairs ? method->forward_pairs : method->backward_pairs;

    *sweep = (struct adi_sweep){.method = method};
    for (int d = 0; d < 3; d++) {
        int last = cfd->parts[d] - 1;
        size_t rows = (size_t)inner(cfd->at[d][last], d) * method->row_pairs;

        for (int stage = 0; stage <= last; stage++) {
            size_t carries = line_pairs(cfd->at[d][stage], d) * most;

            sweep->carry_pairs = carries > sweep->carry_pairs ? carries : sweep->carry_pairs;
            if (stage < last)
                rows += row_pairs_of_cell(sweep, cfd->at[d][stage], d);
        }
        sweep->rows_pairs = rows > sweep->rows_pairs ? rows : sweep->rows_pairs;
    }
}

double adi_bytes(const struct adi_sweep *sweep)
{
    return sizeof(pair) * ((double)sweep->rows_pairs + 2.0 * (double)sweep->carry_pairs);
}

void adi_allocate(struct adi_sweep *sweep)
{
    sweep->rows = npb_allocate(sweep->rows_pairs, sizeof(pair));
    sweep->carry = npb_allocate(sweep->carry_pairs, sizeof(pair));
    sweep->other = npb_allocate(sweep->carry_pairs, sizeof(pair));
}

void adi_free(struct adi_sweep *sweep)
{
    free(sweep->rows);
    free(sweep->carry);
    free(sweep->other);
}

static void iterate(struct cfd *cfd, struct adi_sweep *sweep, int steps)
{
    for (int step = 1; step <= steps; step++) {
        if (step % 20 == 0 || step == 1)
            npb_say(" Time step %4d\n", step);
        cfd_residual(cfd);
        if (sweep->method->prepare)
            sweep->method->prepare(cfd);
        for (int d = 0; d < 3; d++)
            adi_solve(sweep, cfd, d);
    }
}

int adi_main(int argc, char **argv, const struct adi_method *method)
{
    struct npb_result result = {.operations = "floating point"};
    const double *mop = method->operations;
    struct adi_sweep sweep;
    struct cfd cfd;
    double n;

    npb_init(&argc, &argv, method->kernel);
    cfd_divide_diagonal(&cfd, &method->problems[npb_class_index()]);
    adi_plan(&sweep, method, &cfd);
    npb_require_memory(cfd_bytes(&cfd) + adi_bytes(&sweep));
    cfd_allocate(&cfd);
    adi_allocate(&sweep);
    cfd_set_forcing(&cfd);
    cfd_set_initial(&cfd);
    iterate(&cfd, &sweep, 1);
    cfd_set_initial(&cfd);

    npb_start();
    iterate(&cfd, &sweep, cfd.problem->iterations);
    result.seconds = npb_stop();

    cfd_residual(&cfd);
    result.verified = cfd_verify(&cfd);
    n = cfd.n;
    snprintf(result.size, sizeof result.size, "%dx%dx%d", cfd.n, cfd.n, cfd.n);
    result.iterations = cfd.problem->iterations;
    result.mop = 1e-6 * result.iterations * (((mop[0] * n + mop[1]) * n + mop[2]) * n + mop[3]);
    adi_free(&sweep);
    cfd_free(&cfd);
    return npb_report(&result);
}
