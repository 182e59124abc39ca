/* The exact solution, the initial state and forcing that follow from it, and the comparison with published values. */
#include "cfd.h"

#include <math.h>
#include <stdio.h>

#define TOLERANCE 1e-8

/* Rows: the fields. Columns: 1, then x y z, then their squares, cubes and fourth powers (RNR-94-007, table 3.1). */
static const double polynomial[FIELDS][13] = {
    {2, 0, 0, 4, 5, 3, .5, .02, .01, .03, .5, .4, .3},  {1, 0, 0, 0, 1, 2, 3, .01, .03, .02, .4, .3, .5},
    {2, 2, 0, 0, 0, 2, 3, .04, .03, .05, .3, .5, .4},   {2, 2, 0, 0, 0, 2, 3, .03, .05, .04, .2, .1, .3},
    {5, 4, 3, 2, .1, .4, .3, .05, .04, .03, .1, .3, .2},
};

void cfd_exact(const struct cfd *cfd, int i, int j, int k, double value[FIELDS])
{
    double at[3] = {i / cfd->h, j / cfd->h, k / cfd->h};

    for (int m = 0; m < FIELDS; m++) {
        value[m] = polynomial[m][0];
        for (int d = 0; d < 3; d++) {
            const double *c = &polynomial[m][1 + d];

            value[m] += at[d] * (c[0] + at[d] * (c[3] + at[d] * (c[6] + at[d] * c[9])));
        }
    }
}

/* Blends the six boundary values that lie ahead and behind along the axes, as if each axis were alone. */
static void initial_value(const struct cfd *cfd, int i, int j, int k, double value[FIELDS])
{
    int last = cfd->n - 1, at[3] = {i, j, k};
    double along[3][FIELDS];

    if (i == 0 || j == 0 || k == 0 || i == last || j == last || k == last) {
        cfd_exact(cfd, i, j, k, value);
        return;
    }
    for (int d = 0; d < 3; d++) {
        int g[3] = {i, j, k};
        double behind[FIELDS], ahead[FIELDS], share = at[d] / cfd->h;

        g[d] = 0;
        cfd_exact(cfd, g[0], g[1], g[2], behind);
        g[d] = last;
        cfd_exact(cfd, g[0], g[1], g[2], ahead);
        for (int m = 0; m < FIELDS; m++)
            along[d][m] = share * ahead[m] + (1 - share) * behind[m];
    }
    for (int m = 0; m < FIELDS; m++) {
        double x = along[0][m], y = along[1][m], z = along[2][m];

        value[m] = x + y + z - x * y - y * z - z * x + x * y * z;
    }
}

typedef void point_value(const struct cfd *cfd, int i, int j, int k, double value[FIELDS]);

/* Halos as well. Outside the cube any positive density will do: those points are read, but their weight is 0. */
static void fill(struct cfd *cfd, point_value *point)
{
    for (int c = 0; c < cfd->cells; c++) {
        const struct cfd_cell *cell = &cfd->cell[c];

        for (int k = -HALO; k < cell->n[2] + HALO; k++)
            for (int j = -HALO; j < cell->n[1] + HALO; j++)
                for (int i = -HALO; i < cell->n[0] + HALO; i++) {
                    int x = cell->start[0] + i, y = cell->start[1] + j, z = cell->start[2] + k;
                    double value[FIELDS] = {1, 0, 0, 0, 1};

                    if (x >= 0 && y >= 0 && z >= 0 && x < cfd->n && y < cfd->n && z < cfd->n)
                        point(cfd, x, y, z, value);
                    for (int m = 0; m < FIELDS; m++)
                        cfd_u(cell, i, j, k)[m * cell->row] = value[m];
                }
    }
}

void cfd_set_initial(struct cfd *cfd)
{
    fill(cfd, initial_value);
}

void cfd_set_forcing(struct cfd *cfd)
{
    fill(cfd, cfd_exact);
    cfd_residual(cfd);
    for (int c = 0; c < cfd->cells; c++) {
        const struct cfd_cell *cell = &cfd->cell[c];

        for (int k = cell->lo[2]; k < cell->hi[2]; k++)
            for (int j = cell->lo[1]; j < cell->hi[1]; j++) {
                const double *r = cfd_r(cell, 0, j, k);
                double *f = cell->f + (r - cell->r);

                for (int m = 0; m < FIELDS; m++)
                    for (int i = cell->lo[0]; i < cell->hi[0]; i++)
                        f[m * cell->row + i] = -r[m * cell->row + i];
            }
    }
}

static void add_squares(const struct cfd *cfd, const struct cfd_cell *cell, int i, int j, int k,
                        double sum[2][FIELDS])
{
    double exact[FIELDS];

    cfd_exact(cfd, cell->start[0] + i, cell->start[1] + j, cell->start[2] + k, exact);
    for (int m = 0; m < FIELDS; m++) {
        double residual = cfd_r(cell, i, j, k)[m * cell->row] / cfd->dt;
        double error = cfd_u(cell, i, j, k)[m * cell->row] - exact[m];

        sum[0][m] += residual * residual;
        sum[1][m] += error * error;
    }
}

bool cfd_verify(const struct cfd *cfd)
{
    double mine[2][FIELDS] = {{0}}, sum[2][FIELDS], points = pow(cfd->n - 2, 3);
    const double *expected[2] = {cfd->problem->residual, cfd->problem->error};
    bool verified = true;

    for (int c = 0; c < cfd->cells; c++) {
        const struct cfd_cell *cell = &cfd->cell[c];

        for (int k = cell->lo[2]; k < cell->hi[2]; k++)
            for (int j = cell->lo[1]; j < cell->hi[1]; j++)
                for (int i = cell->lo[0]; i < cell->hi[0]; i++)
                    add_squares(cfd, cell, i, j, k, mine);
    }
    MPI_Allreduce(mine, sum, 2 * FIELDS, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int kind = 0; kind < 2; kind++)
        for (int m = 0; m < FIELDS; m++) {
            char name[32];

            snprintf(name, sizeof name, kind == 0 ? "Residual %d" : "Error %d", m + 1);
            verified &= npb_close(name, sqrt(sum[kind][m] / points), expected[kind][m], TOLERANCE);
        }
    return verified;
}
