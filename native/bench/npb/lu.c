/*
 * NPB LU, a pseudo-application: the steady state of the equations in cfd.h by symmetric successive over-relaxation.
 *
 * Every step: residual (one exchange of two-deep halos), lower sweep, upper sweep, update. The sweeps pass many small
 * messages, two for each plane and neighbour. Verified by residual and error norms and a surface integral of pressure.
 */
#include "lu_sweep.h"

#include <math.h>
#include <stdio.h>

static const struct cfd_problem problems[NPB_CLASSES] = {
    {12, 50, 0.5,
     {1.6196343210976702e-02, 2.1976745164821318e-03, 1.5179927653399185e-03, 1.5029584435994323e-03,
      3.4264073155896461e-02},
     {6.4223319957960924e-04, 8.4144342047347926e-05, 5.8588269616485186e-05, 5.8474222595157350e-05,
      1.3103347914111294e-03}},
    {33, 300, 1.5e-3,
     {0.1236511638192e+02, 0.1317228477799e+01, 0.2550120713095e+01, 0.2326187750252e+01, 0.2826799444189e+02},
     {0.4867877144216e+00, 0.5064652880982e-01, 0.9281818101960e-01, 0.8570126542733e-01, 0.1084277417792e+01}},
    {64, 250, 2.0,
     {7.7902107606689367e+02, 6.3402765259692870e+01, 1.9499249727292479e+02, 1.7845301160418537e+02,
      1.8384760349464247e+03},
     {2.9964085685471943e+01, 2.8194576365003349, 7.3473412698774742, 6.7139225687777051, 7.0715315688392578e+01}},
    {102, 250, 2.0,
     {3.5532672969982736e+03, 2.6214750795310692e+02, 8.8333721850952190e+02, 7.7812774739425265e+02,
      7.3087969592545314e+03},
     {1.1401176380212709e+02, 8.1098963655421574, 2.8480597317698308e+01, 2.5905394567832939e+01,
      2.6054907504857413e+02}},
    {162, 250, 2.0,
     {1.03766980323537846e+04, 8.92212458801008552e+02, 2.56238814582660871e+03, 2.19194343857831427e+03,
      1.78078057261061185e+04},
     {2.15986399716949279e+02, 1.55789559239863600e+01, 5.41318863077207766e+01, 4.82262643154045421e+01,
      4.55902910043250358e+02}},
};
static const double surface_integrals[NPB_CLASSES] = {7.8418928865937083, 0.1161399311023e+02, 2.6030925604886277e+01,
                                                      4.7887162703308227e+01, 6.66404553572181300e+01};

static void update(const struct cfd *cfd)
{
    const struct cfd_cell *cell = cfd->cell;
    const double weight = 1 / (LU_OMEGA * (2 - LU_OMEGA));

    for (int k = cell->lo[2]; k < cell->hi[2]; k++)
        for (int j = cell->lo[1]; j < cell->hi[1]; j++) {
            double *restrict u = cfd_u(cell, 0, j, k);
            const double *restrict v = cfd_r(cell, 0, j, k);

            for (int m = 0; m < FIELDS; m++)
                for (int i = cell->lo[0]; i < cell->hi[0]; i++)
                    u[m * cell->row + i] += weight * v[m * cell->row + i];
        }
}

static void iterate(struct cfd *cfd, struct lu_sweep *sweep, int steps)
{
    cfd_residual(cfd);
    for (int step = 1; step <= steps; step++) {
        if (step % 20 == 0 || step == 1 || step == steps)
            npb_say(" Time step %4d\n", step);
        lu_sweep_lower(sweep, cfd);
        lu_sweep_upper(sweep, cfd);
        update(cfd);
        cfd_residual(cfd);
    }
}

/* Pressure at a grid point that belongs to this rank. */
static double pressure_at(const struct cfd_cell *cell, const int g[3])
{
    const double *u = cfd_u(cell, g[0] - cell->start[0], g[1] - cell->start[1], g[2] - cell->start[2]);
    double x = u[MX * cell->row], y = u[MY * cell->row], z = u[MZ * cell->row];

    return C2 * (u[EN * cell->row] - 0.5 * (x * x + y * y + z * z) / u[0]);
}

/* The face's sum of mean corner values is a sum over points, each with half the weight for each edge that it is on. */
static double integrate_face(const struct cfd *cfd, int d, int at, const int from[3], const int to[3])
{
    const struct cfd_cell *cell = cfd->cell;
    int low[3], high[3], g[3];
    double sum = 0;

    for (int e = 0; e < 3; e++) {
        int first = e == d ? at : from[e], last = e == d ? at : to[e], end = cell->start[e] + cell->n[e] - 1;

        low[e] = first > cell->start[e] ? first : cell->start[e];
        high[e] = last < end ? last : end;
    }
    for (g[2] = low[2]; g[2] <= high[2]; g[2]++)
        for (g[1] = low[1]; g[1] <= high[1]; g[1]++)
            for (g[0] = low[0]; g[0] <= high[0]; g[0]++) {
                double weight = 1;

                for (int e = 0; e < 3; e++)
                    if (e != d && (g[e] == from[e] || g[e] == to[e]))
                        weight /= 2;
                sum += weight * pressure_at(cell, g);
            }
    return sum;
}

/* Pressure over the surface of the box of points 1..n-2, 1..n-3, 2..n-2 (of 0..n-1), as the specification has it. */
static double surface_integral(const struct cfd *cfd)
{
    int n = cfd->n, from[3] = {1, 1, 2}, to[3] = {n - 2, n - 3, n - 2};
    double mine = 0, sum;

    for (int d = 0; d < 3; d++)
        mine += integrate_face(cfd, d, from[d], from, to) + integrate_face(cfd, d, to[d], from, to);
    MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sum / (cfd->h * cfd->h);
}

int main(int argc, char **argv)
{
    struct npb_result result = {.operations = "floating point"};
    struct lu_sweep sweep;
    struct cfd cfd;
    double n;

    npb_init(&argc, &argv, "LU");
    cfd_divide_plane(&cfd, &problems[npb_class_index()]);
    npb_require_memory(cfd_bytes(&cfd) + lu_sweep_bytes(&cfd));
    cfd_allocate(&cfd);
    lu_sweep_allocate(&sweep, &cfd);
    cfd_set_forcing(&cfd);
    cfd_set_initial(&cfd);
    iterate(&cfd, &sweep, 1);
    cfd_set_initial(&cfd);

    npb_start();
    iterate(&cfd, &sweep, cfd.problem->iterations);
    result.seconds = npb_stop();

    result.verified = cfd_verify(&cfd);
    result.verified &= npb_close("Surface", surface_integral(&cfd), surface_integrals[npb_class_index()], 1e-8);
    n = cfd.n;
    snprintf(result.size, sizeof result.size, "%dx%dx%d", cfd.n, cfd.n, cfd.n);
    result.iterations = cfd.problem->iterations;
    result.mop = 1e-6 * result.iterations * (((1984.77 * n - 10923.3) * n + 27770.9) * n - 144010);
    lu_sweep_free(&sweep);
    cfd_free(&cfd);
    return npb_report(&result);
}
