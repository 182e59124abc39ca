/*
 * The sweeps of LU. A point needs the new values of its three neighbours behind (lower sweep) or ahead (upper sweep),
 * so planes of constant z go through the grid of ranks as a wave: receive the edges, sweep the plane, send the edges.
 *
 * No 5x5 block is ever formed. The product of a Jacobian with a vector v is the change of the flux when the state
 * changes by v, and costs less than the block alone. The diagonal block is lower triangular: the viscous flux of a
 * momentum depends on density and that momentum only, and density has none, so forward substitution solves it.
 */
#include "lu_sweep.h"

#include <stdlib.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))

enum { LOWER = -1, UPPER = 1 }; /* and where the neighbour lies */

/* Sums over the directions of the viscous weight of a momentum, and of the weights of the second differences. */
#define VISCOUS_SUM (C34 * 10 / 3)
#define CONDUCTION_SUM (3 * C1345)

/*
 * y += central * A v - second * (N + diffusion) v, with the Jacobians A of the convective flux along d and N of the
 * viscous one, at the point of u.
 */
static ALWAYS_INLINE void add_product(double y[FIELDS], const double *u, const double *v, ptrdiff_t row, const int d,
                                      double central, double second)
{
    double inverse = u[INV * row], energy = u[EN * row], speed = u[(VX + d) * row];
    double v_rho = v[0], v_energy = v[EN * row], flow = v[(MX + d) * row] - speed * v_rho;
    double pressure = C2 * (u[QS * row] * v_rho - u[VX * row] * v[MX * row] - u[VY * row] * v[MY * row]
                            - u[VZ * row] * v[MZ * row] + v_energy);
    double viscous = second * C34 * inverse, friction = 0, diffusion = second * cfd_diffusion[d];

    y[0] += central * v[(MX + d) * row] - diffusion * v_rho;
    for (int a = 0; a < 3; a++) {
        double velocity = u[(VX + a) * row], v_a = v[(MX + a) * row];
        double drag = viscous * (v_a - velocity * v_rho);

        friction += velocity * drag;
        if (a == d)
            y[1 + a] += central * (speed * v_a + velocity * flow + pressure) - drag * 4 / 3 - diffusion * v_a;
        else
            y[1 + a] += central * (speed * v_a + velocity * flow) - drag - diffusion * v_a;
    }
    y[4] += central * (speed * (v_energy + pressure) + (energy + u[PR * row]) * inverse * flow)
            - (1 - C1345 / C34) * friction - viscous / 3 * speed * flow
            - second * C1345 * inverse * (v_energy - energy * inverse * v_rho) - diffusion * v_energy;
}

/* Weights of the diagonal block D = I + 2 dt / distance^2 (viscous Jacobians + diffusion). */
struct diagonal {
    double constant, inverse, viscous, conduction;
};

static struct diagonal diagonal_of(const struct cfd *cfd)
{
    double twice = 2 * cfd->dt * cfd->h * cfd->h;
    struct diagonal d = {.viscous = twice * VISCOUS_SUM, .conduction = twice * CONDUCTION_SUM};

    d.constant = 1 + twice * (cfd_diffusion[0] + cfd_diffusion[1] + cfd_diffusion[2]);
    d.inverse = 1 / d.constant;
    return d;
}

/* x <- D^-1 x by forward substitution. */
static ALWAYS_INLINE void solve_diagonal(double x[FIELDS], const double *u, ptrdiff_t row, struct diagonal d,
                                         double momentum_inverse, double energy_inverse)
{
    double inverse = u[INV * row], viscous = d.viscous * inverse, conduction = d.conduction * inverse, work = 0;

    x[0] *= d.inverse;
    for (int a = 0; a < 3; a++) {
        double velocity = u[(VX + a) * row];

        x[1 + a] = (x[1 + a] + viscous * velocity * x[0]) * momentum_inverse;
        work += velocity * (x[1 + a] - velocity * x[0]);
    }
    x[4] = (x[4] - (viscous - conduction) * work + conduction * u[EN * row] * inverse * x[0]) * energy_inverse;
}

/* One row: everything that does not depend on the neighbour in the row itself goes before, in vectors. */
static ALWAYS_INLINE void sweep_row(struct lu_sweep *sweep, const struct cfd *cfd, const struct cfd_cell *cell, int j,
                                    int k, const int way)
{
    ptrdiff_t row = cell->row, y_u = way * cell->u_step[1], z_u = way * cell->u_step[2];
    ptrdiff_t y_v = way * cell->r_step[1], z_v = way * cell->r_step[2];
    const double *restrict u = cfd_u(cell, 0, j, k);
    double *restrict v = cfd_r(cell, 0, j, k), *restrict sum = sweep->sum;
    double *restrict momentum_inverse = sweep->inverse, *restrict energy_inverse = sweep->inverse + row;
    double second = LU_OMEGA * cfd->dt * cfd->h * cfd->h, central = way * LU_OMEGA * cfd->dt * cfd->h / 2;
    struct diagonal diagonal = diagonal_of(cfd);
    int from = cell->lo[0], to = cell->hi[0];

#pragma GCC ivdep /* sum, inverse, u and v do not overlap: GCC forgets it when it inlines */
    for (int i = from; i < to; i++) {
        double s[FIELDS] = {0};

        add_product(s, u + i + z_u, v + i + z_v, row, 2, central, second);
        add_product(s, u + i + y_u, v + i + y_v, row, 1, central, second);
        for (int m = 0; m < FIELDS; m++)
            sum[m * row + i] = s[m];
        momentum_inverse[i] = 1 / (diagonal.constant + diagonal.viscous * u[INV * row + i]);
        energy_inverse[i] = 1 / (diagonal.constant + diagonal.conduction * u[INV * row + i]);
    }
    for (int step = from; step < to; step++) {
        int i = way == LOWER ? step : from + to - 1 - step;
        double x[FIELDS];

        for (int m = 0; m < FIELDS; m++)
            x[m] = sum[m * row + i];
        add_product(x, u + i + way, v + i + way, row, 0, central, second);
        if (way == LOWER)
            for (int m = 0; m < FIELDS; m++)
                x[m] = v[m * row + i] - x[m];
        solve_diagonal(x, u + i, row, diagonal, momentum_inverse[i], energy_inverse[i]);
        for (int m = 0; m < FIELDS; m++)
            v[m * row + i] = way == LOWER ? x[m] : v[m * row + i] - x[m];
    }
}

static void sweep_row_lower(struct lu_sweep *sweep, const struct cfd *cfd, const struct cfd_cell *cell, int j, int k)
{
    sweep_row(sweep, cfd, cell, j, k, LOWER);
}

static void sweep_row_upper(struct lu_sweep *sweep, const struct cfd *cfd, const struct cfd_cell *cell, int j, int k)
{
    sweep_row(sweep, cfd, cell, j, k, UPPER);
}

/* Copies the points with index `at` along d (x or y) in plane k between r and the message; gives its length. */
static int copy_edge(const struct cfd_cell *cell, int d, int at, int k, double *message, bool into_cell)
{
    int across = 1 - d, count = 0;
    double *start = d == 0 ? cfd_r(cell, at, 0, k) : cfd_r(cell, 0, at, k);

    for (int p = 0; p < cell->n[across]; p++)
        for (int m = 0; m < FIELDS; m++, count++) {
            double *value = start + p * cell->r_step[across] + m * cell->row;

            if (into_cell)
                *value = message[count];
            else
                message[count] = *value;
        }
    return count;
}

static void receive_edges(struct lu_sweep *sweep, const struct cfd *cfd, int k, int way)
{
    const struct cfd_cell *cell = cfd->cell;

    for (int d = 0; d < 2; d++) {
        int source = way == LOWER ? cfd->previous[d] : cfd->next[d];

        if (source == MPI_PROC_NULL)
            continue;
        MPI_Recv(sweep->in, FIELDS * cell->n[1 - d], MPI_DOUBLE, source, d, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        copy_edge(cell, d, way == LOWER ? -1 : cell->n[d], k, sweep->in, true);
    }
}

static void send_edges(struct lu_sweep *sweep, const struct cfd *cfd, int k, int way)
{
    const struct cfd_cell *cell = cfd->cell;

    for (int d = 0; d < 2; d++) {
        int target = way == LOWER ? cfd->next[d] : cfd->previous[d];

        if (target != MPI_PROC_NULL)
            MPI_Send(sweep->out, copy_edge(cell, d, way == LOWER ? cell->n[d] - 1 : 0, k, sweep->out, false),
                     MPI_DOUBLE, target, d, MPI_COMM_WORLD);
    }
}

void lu_sweep_lower(struct lu_sweep *sweep, const struct cfd *cfd)
{
    const struct cfd_cell *cell = cfd->cell;

    for (int k = cell->lo[2]; k < cell->hi[2]; k++) {
        receive_edges(sweep, cfd, k, LOWER);
        for (int j = cell->lo[1]; j < cell->hi[1]; j++)
            sweep_row_lower(sweep, cfd, cell, j, k);
        send_edges(sweep, cfd, k, LOWER);
    }
}

void lu_sweep_upper(struct lu_sweep *sweep, const struct cfd *cfd)
{
    const struct cfd_cell *cell = cfd->cell;

    for (int k = cell->hi[2] - 1; k >= cell->lo[2]; k--) {
        receive_edges(sweep, cfd, k, UPPER);
        for (int j = cell->hi[1] - 1; j >= cell->lo[1]; j--)
            sweep_row_upper(sweep, cfd, cell, j, k);
        send_edges(sweep, cfd, k, UPPER);
    }
}

static size_t edge_count(const struct cfd *cfd)
{
    const int *n = cfd->cell->n;

    return (size_t)FIELDS * (size_t)(n[0] > n[1] ? n[0] : n[1]);
}

double lu_sweep_bytes(const struct cfd *cfd)
{
    return sizeof(double) * (2.0 * (double)edge_count(cfd) + (FIELDS + 2.0) * (double)cfd->cell->row);
}

void lu_sweep_allocate(struct lu_sweep *sweep, const struct cfd *cfd)
{
    sweep->out = npb_allocate(edge_count(cfd), sizeof(double));
    sweep->in = npb_allocate(edge_count(cfd), sizeof(double));
    sweep->sum = npb_allocate((size_t)cfd->cell->row, FIELDS * sizeof(double));
    sweep->inverse = npb_allocate((size_t)cfd->cell->row, 2 * sizeof(double));
}

void lu_sweep_free(struct lu_sweep *sweep)
{
    free(sweep->out);
    free(sweep->in);
    free(sweep->sum);
    free(sweep->inverse);
}
