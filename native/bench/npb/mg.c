/*
 * NPB MG: V-cycles of multigrid for a Poisson problem on a periodic cube. Verified by the norm of the residual.
 *
 * The operators reach 27 points with one weight per distance; weights are named by it: centre, face, edge, corner.
 * Each works row by row: it adds up, for all x of a row, the four rows at distance 1 and the four at distance sqrt 2
 * in y and z, and combines these sums along x. After each operator the copies around the blocks are right again.
 */
#include "mg_grid.h"
#include "npb.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHARGES = 10, LEVELS = 10 };

static const struct {
    int n, iterations;
    bool second_smoother;
    double norm;
} classes[NPB_CLASSES] = {
    {32, 4, false, 5.307707005734e-5},  {128, 4, false, 6.467329375339e-6}, {256, 4, false, 2.433365309069e-6},
    {256, 20, true, 1.800564401355e-6}, {512, 20, true, 5.706732285740e-7},
};

struct multigrid {
    struct mg_level levels[LEVELS]; /* levels[k]: 2^k points a side; [0] is not used */
    int top;
    double *v, *part; /* part: a cut level's share of the uncut one below it */
    double smooth_centre, smooth_face, smooth_edge;
};

/* Asks for a row that is read soon: it is far from the last, and the processor does not guess it by itself. */
static void fetch_row(const double *row, int count)
{
    enum { LINE = 64 / sizeof *row }; /* doubles in a line of the cache; beyond the array's end nothing happens */

    for (int x = 0; x < count; x += LINE)
        __builtin_prefetch(row + x);
}

/*
 * Sums of the rows around `row`: the four nearest in y and z, and the four beyond them. Of those around the next row,
 * all but one were read before: that one comes from memory while the caller combines these sums.
 */
static void add_rows(const double *restrict row, size_t up, size_t back, int count, double *restrict near,
                     double *restrict far)
{
    const double *below = row - up, *above = row + up;

    for (int x = 0; x < count; x++) {
        near[x] = below[x] + above[x] + (row - back)[x] + (row + back)[x];
        far[x] = (below - back)[x] + (below + back)[x] + (above - back)[x] + (above + back)[x];
    }
    fetch_row(above + 2 * back, count);
}

/* r = v - A u; A's weight at distance 1 is 0. v and r may be the same. */
static void find_residual(const struct mg_level *level, const double *u, const double *v, double *r)
{
    const double centre = -8.0 / 3, edge = 1.0 / 6, corner = 1.0 / 12;
    double near[MG_LONGEST_ROW], far[MG_LONGEST_ROW];
    int count = level->size[0];

    for (int z = 1; z <= level->size[2]; z++)
        for (int y = 1; y <= level->size[1]; y++) {
            size_t at = (size_t)z * level->plane + (size_t)y * level->row;
            const double *ur = u + at, *vr = v + at;
            double *rr = r + at;

            add_rows(ur, level->row, level->plane, count + 2, near, far);
#pragma GCC ivdep
            for (int x = 1; x <= count; x++)
                rr[x] = vr[x] - centre * ur[x] - edge * (far[x] + near[x - 1] + near[x + 1]) -
                        corner * (far[x - 1] + far[x + 1]);
        }
    mg_exchange(level, r);
}

/* u += S r; the smoother's weight at corners is 0. */
static void smooth(const struct multigrid *grid, const struct mg_level *level)
{
    const double centre = grid->smooth_centre, face = grid->smooth_face, edge = grid->smooth_edge;
    double near[MG_LONGEST_ROW], far[MG_LONGEST_ROW];
    int count = level->size[0];

    for (int z = 1; z <= level->size[2]; z++)
        for (int y = 1; y <= level->size[1]; y++) {
            size_t at = (size_t)z * level->plane + (size_t)y * level->row;
            const double *restrict rr = level->r + at;
            double *restrict ur = level->u + at;

            add_rows(rr, level->row, level->plane, count + 2, near, far);
#pragma GCC ivdep
            for (int x = 1; x <= count; x++)
                ur[x] += centre * rr[x] + face * (rr[x - 1] + rr[x + 1] + near[x]) +
                         edge * (far[x] + near[x - 1] + near[x + 1]);
        }
    mg_exchange(level, level->u);
}

/* Weighted means of the fine residuals around each coarse point, to `out` with the given distances of rows. */
static void restrict_block(const struct mg_level *fine, size_t row, size_t plane, double *out)
{
    double near[MG_LONGEST_ROW], far[MG_LONGEST_ROW];

    for (int z = 1; z <= fine->size[2] / 2; z++)
        for (int y = 1; y <= fine->size[1] / 2; y++) {
            const double *restrict in = fine->r + 2 * ((size_t)z * fine->plane + (size_t)y * fine->row);
            double *restrict to = out + (size_t)(z - 1) * plane + (size_t)(y - 1) * row - 1;

            add_rows(in, fine->row, fine->plane, fine->size[0] + 2, near, far);
            for (int c = 1; c <= fine->size[0] / 2; c++) {
                int x = 2 * c;

                to[c] = 0.5 * in[x] + 0.25 * (in[x - 1] + in[x + 1] + near[x]) +
                        0.125 * (near[x - 1] + near[x + 1] + far[x]) + 0.0625 * (far[x - 1] + far[x + 1]);
            }
        }
}

static void restrict_level(struct multigrid *grid, int k)
{
    const struct mg_level *fine = &grid->levels[k], *coarse = &grid->levels[k - 1];

    if (fine->cut && !coarse->cut) {
        size_t row = (size_t)fine->size[0] / 2;

        restrict_block(fine, row, row * (size_t)fine->size[1] / 2, grid->part);
        mg_gather(fine, coarse, grid->part, coarse->r);
        return;
    }
    restrict_block(fine, coarse->row, coarse->plane, coarse->r + coarse->plane + coarse->row + 1);
    mg_exchange(coarse, coarse->r);
}

/* u += Q z, trilinear, the copies around the block as well: z is the level below. */
static void interpolate(const struct mg_level *fine, const struct mg_level *coarse)
{
    bool part = fine->cut && !coarse->cut; /* then the block's part of the whole coarse grid */
    size_t shift = part ? (size_t)fine->first[2] / 2 * coarse->plane + (size_t)fine->first[1] / 2 * coarse->row +
                              (size_t)fine->first[0] / 2
                        : 0;
    double line[MG_LONGEST_ROW];
    int half = fine->size[0] / 2;

    for (int z = 0; z <= fine->size[2] + 1; z++)
        for (int y = 0; y <= fine->size[1] + 1; y++) {
            const double *restrict in =
                coarse->u + shift + (size_t)(z / 2) * coarse->plane + (size_t)(y / 2) * coarse->row;
            size_t up = z % 2 ? coarse->plane : 0, along = y % 2 ? coarse->row : 0;
            double *restrict out = fine->u + (size_t)z * fine->plane + (size_t)y * fine->row;

            if (up && along)
                for (int c = 0; c <= half + 1; c++)
                    line[c] = 0.25 * (in[c] + (in + up)[c] + (in + along)[c] + (in + up + along)[c]);
            else if (up || along)
                for (int c = 0; c <= half + 1; c++)
                    line[c] = 0.5 * (in[c] + (in + up + along)[c]);
            else
                memcpy(line, in, sizeof *line * (size_t)(half + 2));
            for (int c = 0; c <= half; c++) {
                out[2 * c] += line[c];
                out[2 * c + 1] += 0.5 * (line[c] + line[c + 1]);
            }
        }
}

/* One V-cycle: r is v - A u before it and after it. */
static void cycle(struct multigrid *grid)
{
    const struct mg_level *top = &grid->levels[grid->top];

    for (int k = grid->top; k > 1; k--)
        restrict_level(grid, k);
    for (int k = 1; k < grid->top; k++) {
        const struct mg_level *level = &grid->levels[k];

        memset(level->u, 0, level->count * sizeof *level->u);
        if (k > 1) {
            interpolate(level, &grid->levels[k - 1]);
            find_residual(level, level->u, level->r, level->r);
        }
        smooth(grid, level);
    }
    interpolate(top, &grid->levels[grid->top - 1]);
    find_residual(top, top->u, grid->v, top->r);
    smooth(grid, top);
    find_residual(top, top->u, grid->v, top->r);
}

static double find_norm(const struct mg_level *level)
{
    double mine = 0, sum;

    for (int z = 1; z <= level->size[2]; z++)
        for (int y = 1; y <= level->size[1]; y++) {
            const double *row = level->r + (size_t)z * level->plane + (size_t)y * level->row;
            double squares = 0;

            for (int x = 1; x <= level->size[0]; x++)
                squares += row[x] * row[x];
            mine += squares;
        }
    MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sqrt(sum / level->n / level->n / level->n);
}

struct candidate {
    double value;
    int64_t index; /* (z * n + y) * n + x in the whole grid */
};

/* Keeps `best` sorted with the greatest value first; sign -1 looks for the smallest numbers. */
static void offer(struct candidate best[CHARGES], double value, int64_t index)
{
    int place = CHARGES - 1;

    if (value <= best[place].value)
        return;
    for (; place > 0 && best[place - 1].value < value; place--)
        best[place] = best[place - 1];
    best[place] = (struct candidate){value, index};
}

/* The charges: 1 at the ten largest random numbers, -1 at the ten smallest. */
static void place_charges(struct multigrid *grid)
{
    const struct mg_level *top = &grid->levels[grid->top];
    struct candidate best[2][CHARGES], final[CHARGES], *all;
    size_t bytes = sizeof best[0];

    for (int i = 0; i < CHARGES; i++)
        best[0][i] = best[1][i] = (struct candidate){-2, 0}; /* below every number and its negative */
    for (int z = 0; z < top->size[2]; z++)
        for (int y = 0; y < top->size[1]; y++) {
            int64_t index = ((int64_t)(top->first[2] + z) * top->n + top->first[1] + y) * top->n + top->first[0];
            uint64_t state = npb_random_skip(NPB_SEED, (uint64_t)index);

            for (int x = 0; x < top->size[0]; x++) {
                double value = npb_random(&state);

                offer(best[0], value, index + x);
                offer(best[1], -value, index + x);
            }
        }
    all = npb_allocate(CHARGES * (size_t)npb_ranks(), sizeof *all);
    for (int side = 0; side < 2; side++) {
        memcpy(final, best[side], bytes);
        MPI_Allgather(best[side], (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
        for (int i = 0; i < CHARGES * npb_ranks(); i++)
            if (i / CHARGES != npb_rank())
                offer(final, all[i].value, all[i].index);
        for (int i = 0; i < CHARGES; i++) {
            int64_t n = top->n, x = final[i].index % n - top->first[0], y = final[i].index / n % n - top->first[1];
            int64_t z = final[i].index / n / n - top->first[2];

            if (x >= 0 && x < top->size[0] && y >= 0 && y < top->size[1] && z >= 0 && z < top->size[2])
                grid->v[(size_t)(z + 1) * top->plane + (size_t)(y + 1) * top->row + (size_t)x + 1] = side ? -1 : 1;
        }
    }
    free(all);
    mg_exchange(top, grid->v);
}

static void set_up(struct multigrid *grid, int n, bool second_smoother)
{
    grid->smooth_centre = second_smoother ? -3.0 / 17 : -3.0 / 8;
    grid->smooth_face = second_smoother ? 1.0 / 33 : 1.0 / 32;
    grid->smooth_edge = second_smoother ? -1.0 / 61 : -1.0 / 64;
    for (grid->top = 1; 1 << grid->top < n; grid->top++)
        ;
    for (int k = 1; k <= grid->top; k++)
        mg_level_make(&grid->levels[k], 1 << k);
    grid->v = npb_allocate(grid->levels[grid->top].count, sizeof(double));
    grid->part = npb_allocate(MG_WHOLE * MG_WHOLE * MG_WHOLE, sizeof(double));
    place_charges(grid);
}

static void tear_down(struct multigrid *grid)
{
    for (int k = 1; k <= grid->top; k++)
        mg_level_free(&grid->levels[k]);
    free(grid->v);
    free(grid->part);
}

static void begin(struct multigrid *grid)
{
    const struct mg_level *top = &grid->levels[grid->top];

    memset(top->u, 0, top->count * sizeof *top->u);
    find_residual(top, top->u, grid->v, top->r);
}

int main(int argc, char **argv)
{
    struct npb_result result = {.operations = "floating point"};
    struct multigrid grid = {0};
    double norm, points;
    int n;

    npb_init(&argc, &argv, "MG");
    n = classes[npb_class_index()].n;
    points = (double)n * n * n;
    result.iterations = classes[npb_class_index()].iterations;
    npb_require_power_of_two(MG_MOST_RANKS);
    npb_require_memory(8 * points / npb_ranks() * 3.6); /* u, v, r; an eighth of u and r for each level below */
    set_up(&grid, n, classes[npb_class_index()].second_smoother);
    begin(&grid);
    cycle(&grid);

    npb_start();
    begin(&grid);
    for (int iteration = 1; iteration <= result.iterations; iteration++) {
        npb_say("  iter %3d\n", iteration);
        cycle(&grid);
    }
    norm = find_norm(&grid.levels[grid.top]);
    result.seconds = npb_stop();
    tear_down(&grid);

    result.verified = npb_close("L2 norm", norm, classes[npb_class_index()].norm, 1e-8);
    snprintf(result.size, sizeof result.size, "%dx%dx%d", n, n, n);
    result.mop = 58e-6 * result.iterations * points;
    return npb_report(&result);
}
