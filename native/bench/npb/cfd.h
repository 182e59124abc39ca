/*
 * Common to LU, SP and BT: the discrete compressible Navier-Stokes equations of the NAS Parallel Benchmarks
 * (RNR-94-007, chapter 3; NAS-95-020 for the distribution) on n x n x n points of the unit cube.
 *
 * The grid is cut into parts[0] x parts[1] x parts[2] cells. LU gives every rank one cell of a two-dimensional cut; SP
 * and BT run p*p ranks on p*p*p cells, and a rank owns p cells on a wrapped diagonal, so that along each axis it has
 * exactly one cell at every position and is busy in every stage of a sweep. In each direction all cells of a rank
 * have the same neighbouring rank:
 *
 *      p = 2, cells seen from above       z = 0   0 2     z = 1   3 1     (rank = x + p * y of its first cell)
 *                                                 1 3             2 0
 *
 * Memory of a cell: "rows" of points with ascending x, one row for each component, HALO more points at all sides:
 *
 *      component 0: x=-2 -1 | 0 1 ... n-1 | n n+1,  component 1: the same, ..., then all of the next y, then z
 *
 * so loops along x are contiguous, and a point's components lie `row` doubles apart.
 *
 * Invariants: the boundary of the cube keeps the exact solution for ever; `r` is 0 there; the first five components of
 * `u` are the state, the others follow from it and are right after cfd_residual().
 */
#ifndef WHERRY_BENCH_NPB_CFD_H
#define WHERRY_BENCH_NPB_CFD_H

#include "npb.h"

enum { HALO = 2, FIELDS = 5 };

/* Density, momentum, energy (the state); 1/density, velocity, half of the squared velocity, pressure (derived). */
enum { RHO, MX, MY, MZ, EN, INV, VX, VY, VZ, QS, PR, COMPONENTS };

#define C1 1.4             /* ratio of the specific heats */
#define C2 0.4             /* C1 - 1 */
#define C34 0.1            /* viscosity */
#define C15 1.96           /* heat conduction over viscosity */
#define C1345 (C15 * C34)  /* heat conduction */
#define DSSP 0.25          /* weight of the fourth differences */

/* Weight of the second differences of the state along x, y and z. */
static const double cfd_diffusion[3] = {0.75, 0.75, 1.0};

struct cfd_cell {
    int part[3];             /* position in the grid of cells */
    int n[3], start[3];      /* points; index of the first one in the whole grid */
    int lo[3], hi[3];        /* lo <= index < hi: the points inside the cube, boundary left out */
    ptrdiff_t row;           /* doubles between two components of one point */
    ptrdiff_t u_step[3];     /* doubles between neighbours along x, y, z, in u */
    ptrdiff_t r_step[3];     /* and in r and f */
    double *u, *r, *f;       /* point (0,0,0), component 0: state, dt * residual, dt * forcing */
};

/* One class of one benchmark: what to compute and the published result. */
struct cfd_problem {
    int n, iterations;
    double dt;
    double residual[FIELDS], error[FIELDS];
};

struct cfd {
    const struct cfd_problem *problem;
    int n;
    double dt, h; /* h: 1 / distance of two points */
    int parts[3], cells;
    struct cfd_cell *cell;
    struct cfd_cell **at[3]; /* at[d][s]: this rank's cell at position s along d, or NULL */
    int next[3], previous[3]; /* neighbouring ranks along x, y, z, or MPI_PROC_NULL */
    double *out[3][2], *in[3][2]; /* faces to and from previous [0] and next [1]; both at most face_count doubles */
    size_t face_count;
};

static inline double *cfd_u(const struct cfd_cell *cell, int i, int j, int k)
{
    return cell->u + i + j * cell->u_step[1] + k * cell->u_step[2];
}

static inline double *cfd_r(const struct cfd_cell *cell, int i, int j, int k)
{
    return cell->r + i + j * cell->r_step[1] + k * cell->r_step[2];
}

/* Divides the grid among the ranks for SP and BT, and for LU, or refuses their number. */
void cfd_divide_diagonal(struct cfd *cfd, const struct cfd_problem *problem);
void cfd_divide_plane(struct cfd *cfd, const struct cfd_problem *problem);
/* Bytes of this rank; taking and returning them. */
double cfd_bytes(const struct cfd *cfd);
void cfd_allocate(struct cfd *cfd);
void cfd_free(struct cfd *cfd);

/* The forcing that makes the exact solution a steady one; the state at time 0. */
void cfd_set_forcing(struct cfd *cfd);
void cfd_set_initial(struct cfd *cfd);
void cfd_exact(const struct cfd *cfd, int i, int j, int k, double value[FIELDS]);

/* r = f + dt * L(u) at all inner points, with fresh halos and derived components. */
void cfd_residual(struct cfd *cfd);
/* The two-deep halos of the state. */
void cfd_exchange(struct cfd *cfd);
/* Fourth differences at position g of 0..n-1, weights of the points -2..2. They are one-sided near the boundary. */
const double *cfd_fourth_difference(int n, int g);

/* Compares r and the state with the published values: root mean squares within a relative 1e-8. All ranks together. */
bool cfd_verify(const struct cfd *cfd);

#endif
