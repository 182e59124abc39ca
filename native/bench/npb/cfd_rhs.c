/*
 * The right-hand side of the equations: r = f + dt * L(u), L being the sum over the three directions of minus the
 * central differences of the convective flux, plus the viscous and heat fluxes, plus second and minus fourth
 * differences of the state.
 *
 * All loops run along x over contiguous components. Planes are derived just before they are used, while in the cache.
 */
#include "cfd.h"

/* Weights of one direction at one position, times dt: `state` of the points -2..2, central and second differences. */
struct weights {
    double state[5], central, viscous;
};

const double *cfd_fourth_difference(int n, int g)
{
    static const double first[5] = {0, 0, 5, -4, 1}, second[5] = {0, -4, 6, -4, 1}, inner[5] = {1, -4, 6, -4, 1};
    static const double last_but_one[5] = {1, -4, 6, -4, 0}, last[5] = {1, -4, 5, 0, 0};

    if (g <= 2)
        return g == 1 ? first : second;
    if (g >= n - 3)
        return g == n - 2 ? last : last_but_one;
    return inner;
}

static struct weights weights_at(const struct cfd *cfd, int d, int g)
{
    const double *fourth = cfd_fourth_difference(cfd->n, g);
    double second = cfd->dt * cfd_diffusion[d] * cfd->h * cfd->h;
    struct weights w = {.central = cfd->dt * cfd->h / 2, .viscous = cfd->dt * C34 * cfd->h * cfd->h};

    for (int p = 0; p < 5; p++)
        w.state[p] = -cfd->dt * DSSP * fourth[p];
    w.state[1] += second;
    w.state[2] -= 2 * second;
    w.state[3] += second;
    return w;
}

static void derive_row(double *restrict u, ptrdiff_t row, int from, int to)
{
    for (int i = from; i < to; i++) {
        double inverse = 1 / u[RHO * row + i];
        double x = inverse * u[MX * row + i], y = inverse * u[MY * row + i], z = inverse * u[MZ * row + i];
        double half_square = 0.5 * (x * x + y * y + z * z);

        u[INV * row + i] = inverse;
        u[VX * row + i] = x;
        u[VY * row + i] = y;
        u[VZ * row + i] = z;
        u[QS * row + i] = half_square;
        u[PR * row + i] = C2 * (u[EN * row + i] - u[RHO * row + i] * half_square);
    }
}

static void derive_plane(const struct cfd_cell *cell, int k)
{
    for (int j = -1; j <= cell->n[1]; j++)
        derive_row(cfd_u(cell, 0, j, k), cell->row, -1, cell->n[0] + 1);
}

#define STATE_PART(q, i) \
    (w.state[0] * (q)[(i) - 2 * s] + w.state[1] * (q)[(i) - s] + w.state[2] * (q)[i] + w.state[3] * (q)[(i) + s] + \
     w.state[4] * (q)[(i) + 2 * s])

/* Adds direction d's part at the points from..to-1 of a row; s: doubles to the next point along d. */
static inline __attribute__((always_inline)) void add_direction(double *restrict r, const double *restrict u,
                                                                ptrdiff_t row, ptrdiff_t s, const int d, int from,
                                                                int to, struct weights w)
{
    const double *speed = u + (VX + d) * row, *momentum = u + (MX + d) * row, *pressure = u + PR * row;
    const double *rho = u, *energy = u + EN * row, *inverse = u + INV * row, *half_square = u + QS * row;

    for (int i = from; i < to; i++)
        r[i] += STATE_PART(rho, i) - w.central * (momentum[i + s] - momentum[i - s]);
    for (int a = 0; a < 3; a++) {
        const double *m = u + (MX + a) * row, *v = u + (VX + a) * row;
        double *restrict out = r + (1 + a) * row;
        double viscous = a == d ? w.viscous * 4 / 3 : w.viscous;

        if (a == d)
            for (int i = from; i < to; i++)
                out[i] += STATE_PART(m, i) + viscous * (v[i + s] - 2 * v[i] + v[i - s])
                          - w.central * (m[i + s] * v[i + s] - m[i - s] * v[i - s] + pressure[i + s] - pressure[i - s]);
        else
            for (int i = from; i < to; i++)
                out[i] += STATE_PART(m, i) + viscous * (v[i + s] - 2 * v[i] + v[i - s])
                          - w.central * (m[i + s] * speed[i + s] - m[i - s] * speed[i - s]);
    }
    r += EN * row;
    for (int i = from; i < to; i++) {
        double after = speed[i + s], here = speed[i], before = speed[i - s];

        r[i] += STATE_PART(energy, i)
                - w.central * ((energy[i + s] + pressure[i + s]) * after - (energy[i - s] + pressure[i - s]) * before)
                + w.viscous * ((1 - C15) * (half_square[i + s] - 2 * half_square[i] + half_square[i - s])
                               + (after * after - 2 * here * here + before * before) / 6
                               + C15 * (energy[i + s] * inverse[i + s] - 2 * energy[i] * inverse[i]
                                        + energy[i - s] * inverse[i - s]));
    }
}

/* Along x the weights differ at the two points next to each end: these are ranges of one point. */
static void add_along_row(const struct cfd *cfd, const struct cfd_cell *cell, double *r, const double *u)
{
    int n = cfd->n, start = cell->start[0];

    for (int from = cell->lo[0], to; from < cell->hi[0]; from = to) {
        int g = start + from;

        to = g < 3 || g > n - 4 ? from + 1 : n - 3 - start;
        if (to > cell->hi[0])
            to = cell->hi[0];
        add_direction(r, u, cell->row, 1, 0, from, to, weights_at(cfd, 0, g));
    }
}

static void residual_row(const struct cfd *cfd, const struct cfd_cell *cell, int j, int k, struct weights y,
                         struct weights z)
{
    ptrdiff_t row = cell->row;
    double *restrict r = cfd_r(cell, 0, j, k);
    const double *restrict f = cell->f + (r - cell->r), *u = cfd_u(cell, 0, j, k);
    int from = cell->lo[0], to = cell->hi[0];

    for (int m = 0; m < FIELDS; m++)
        for (int i = from; i < to; i++)
            r[m * row + i] = f[m * row + i];
    add_along_row(cfd, cell, r, u);
    add_direction(r, u, row, cell->u_step[1], 1, from, to, y);
    add_direction(r, u, row, cell->u_step[2], 2, from, to, z);
}

static void residual_cell(const struct cfd *cfd, const struct cfd_cell *cell)
{
    derive_plane(cell, cell->lo[2] - 1);
    derive_plane(cell, cell->lo[2]);
    for (int k = cell->lo[2]; k < cell->hi[2]; k++) {
        struct weights z = weights_at(cfd, 2, cell->start[2] + k);

        derive_plane(cell, k + 1);
        for (int j = cell->lo[1]; j < cell->hi[1]; j++)
            residual_row(cfd, cell, j, k, weights_at(cfd, 1, cell->start[1] + j), z);
    }
}

void cfd_residual(struct cfd *cfd)
{
    cfd_exchange(cfd);
    for (int c = 0; c < cfd->cells; c++)
        residual_cell(cfd, &cfd->cell[c]);
}
