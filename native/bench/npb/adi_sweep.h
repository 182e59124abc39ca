/*
 * Solving along all grid lines of one direction, as SP and BT do: elimination forwards, substitution backwards.
 *
 * Two neighbouring lines are solved at once, one in each half of a `pair`; an odd last line fills both halves. Lines
 * cross the cells of several ranks: in stage s every rank works on its cell at position s and passes, for each pair of
 * lines, what the next cell needs (the "carry"). The last cell turns round, line by line, while its data are in the
 * cache; only cells before it store their eliminated rows.
 *
 *      stage 0        stage 1        stage 2 = last
 *      forward  --->  forward  --->  forward         rows of stages 0 and 1 are stored
 *      backward <---  backward <---  backward
 */
#ifndef WHERRY_BENCH_NPB_ADI_SWEEP_H
#define WHERRY_BENCH_NPB_ADI_SWEEP_H

#include "cfd.h"

typedef double pair __attribute__((vector_size(16)));

/* Two lines inside one cell. */
struct adi_line {
    int first, count; /* position in the whole grid of the first inner point along d, and inner points */
    ptrdiff_t row;
    ptrdiff_t u_step, r_step; /* doubles to the next point */
    ptrdiff_t u_lane, r_lane; /* doubles to the same point of the second line, 0 when there is none */
    double *u, *r;            /* the first inner point of the first line */
};

static inline pair adi_load(const double *at, ptrdiff_t lane)
{
    return (pair){at[0], at[lane]};
}

static inline void adi_store(double *at, ptrdiff_t lane, pair value)
{
    at[lane] = value[1]; /* lane 0: both values are the same */
    at[0] = value[0];
}

/*
 * A method. `forward` eliminates along a line: r becomes rows, and `carry` the part of the last rows for the next cell;
 * `backward` turns rows and carry into the solution and puts it where it belongs. Both begin with a carry of
 * zeros at the cube's boundary, where nothing changes.
 */
struct adi_method {
    const char *kernel;
    const struct cfd_problem *problems; /* of NPB_CLASSES */
    double operations[4];               /* in one step: coefficients of n cubed, squared, n, 1 */
    size_t row_pairs;                   /* of one point */
    size_t forward_pairs, backward_pairs; /* carries of one pair of lines */
    void (*prepare)(const struct cfd *cfd); /* changes r before the x lines, or NULL */
    void (*forward[3])(const struct cfd *cfd, const struct adi_line *line, pair *rows, pair *carry);
    void (*backward[3])(const struct cfd *cfd, const struct adi_line *line, const pair *rows, pair *carry);
};

struct adi_sweep {
    const struct adi_method *method;
    size_t rows_pairs, carry_pairs;
    pair *rows, *carry, *other; /* other: received carries, or returning ones */
};

/* How much memory the sweeps need, taking it, returning it. */
void adi_plan(struct adi_sweep *sweep, const struct adi_method *method, const struct cfd *cfd);
double adi_bytes(const struct adi_sweep *sweep);
void adi_allocate(struct adi_sweep *sweep);
void adi_free(struct adi_sweep *sweep);

/* Solves along d in all cells. */
void adi_solve(struct adi_sweep *sweep, const struct cfd *cfd, int d);

/* The whole program of a method. */
int adi_main(int argc, char **argv, const struct adi_method *method);

#endif
