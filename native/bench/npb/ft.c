/*
 * NPB FT: a heat equation on a periodic box by three-dimensional Fourier transforms. Verified by a sum of 1024 points
 * after each step of time.
 *
 * The box is cut into slabs, and turned by one MPI_Alltoall in each transform:
 *
 *     space   [z of mine][y][x]                  transforms along x and y are whole here
 *     packed  [rank][z of mine][y of rank][x]    what MPI_Alltoall sends and receives
 *     waves   [z][y of mine][x]                  transforms along z are whole here; packed by rank already
 */
#include "ft_lines.h"
#include "npb.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 20, SUMMANDS = 1024 };

struct number {
    double re, im;
};

struct problem {
    int nx, ny, nz, steps;
    struct number sums[MOST_STEPS];
};

static const struct problem problems[NPB_CLASSES] = {
#include "ft_checksums.h"
};

struct box {
    int nx, ny, nz, my_y, my_z; /* my_y in waves, my_z in space */
    struct ft_roots roots_x, roots_y, roots_z;
    struct number *waves, *space, *packed; /* packed: only with several ranks */
    double *damp_x, *damp_y, *damp_z;      /* each wave's factor after the steps so far, by direction */
};

static struct ft_block lines[2];

/* Loads FT_LINES neighbours in x, at `count` places that are `stride` numbers apart, into block places from `first`. */
static void load(const struct number *from, size_t stride, int count, int first)
{
    for (int k = 0; k < count; k++, from += stride) {
        double *restrict re = lines[0].re + (first + k) * FT_LINES, *restrict im = lines[0].im + (first + k) * FT_LINES;

        for (int line = 0; line < FT_LINES; line++) {
            re[line] = from[line].re;
            im[line] = from[line].im;
        }
    }
}

static void store(const struct ft_block *block, int first, int count, size_t stride, struct number *to)
{
    for (int k = 0; k < count; k++, to += stride) {
        const double *restrict re = block->re + (first + k) * FT_LINES, *restrict im = block->im + (first + k) * FT_LINES;

        for (int line = 0; line < FT_LINES; line++)
            to[line] = (struct number){re[line], im[line]};
    }
}

typedef struct ft_block *transform(const struct ft_roots *, struct ft_block *, struct ft_block *);

/* Along x, in place: FT_LINES rows of the plane at a time. */
static void transform_x(const struct box *box, struct number *plane, transform *along)
{
    for (int y = 0; y < box->ny; y += FT_LINES) {
        struct number *rows = plane + (size_t)y * (size_t)box->nx;
        const struct ft_block *done;

        for (int x = 0; x < box->nx; x++)
            for (int line = 0; line < FT_LINES; line++) {
                lines[0].re[x * FT_LINES + line] = rows[line * box->nx + x].re;
                lines[0].im[x * FT_LINES + line] = rows[line * box->nx + x].im;
            }
        done = along(&box->roots_x, &lines[0], &lines[1]);
        for (int line = 0; line < FT_LINES; line++)
            for (int x = 0; x < box->nx; x++)
                rows[line * box->nx + x] =
                    (struct number){done->re[x * FT_LINES + line], done->im[x * FT_LINES + line]};
    }
}

/* Where in `packed` the rows y of one plane of mine begin that `rank` has in waves. */
static struct number *find_packed(const struct box *box, struct number *packed, int rank, int z)
{
    return packed + ((size_t)rank * (size_t)box->my_z + (size_t)z) * (size_t)box->my_y * (size_t)box->nx;
}

static void turn(const struct box *box, const struct number *from, struct number *to)
{
    int count = 2 * box->my_z * box->my_y * box->nx;

    MPI_Alltoall(from, count, MPI_DOUBLE, to, count, MPI_DOUBLE, MPI_COMM_WORLD);
}

/* From space to waves; space is lost. */
static void transform_forward(const struct box *box)
{
    size_t nx = (size_t)box->nx, plane = nx * (size_t)box->ny, slab = nx * (size_t)box->my_y;
    struct number *packed = npb_ranks() > 1 ? box->packed : box->waves;

    for (int z = 0; z < box->my_z; z++) {
        struct number *in = box->space + (size_t)z * plane;

        transform_x(box, in, ft_transform);
        for (size_t x = 0; x < nx; x += FT_LINES) {
            const struct ft_block *done;

            load(in + x, nx, box->ny, 0);
            done = ft_transform(&box->roots_y, &lines[0], &lines[1]);
            for (int rank = 0; rank < npb_ranks(); rank++)
                store(done, rank * box->my_y, box->my_y, nx, find_packed(box, packed, rank, z) + x);
        }
    }
    if (npb_ranks() > 1)
        turn(box, packed, box->waves);
    for (size_t at = 0; at < slab; at += FT_LINES) {
        load(box->waves + at, slab, box->nz, 0);
        store(ft_transform(&box->roots_z, &lines[0], &lines[1]), 0, box->nz, slab, box->waves + at);
    }
}

/* Multiplies the loaded lines along z by the damping of their waves. */
static void damp(const struct box *box, int y, size_t x)
{
    for (int z = 0; z < box->nz; z++) {
        double *restrict re = lines[0].re + z * FT_LINES, *restrict im = lines[0].im + z * FT_LINES;
        double factor = box->damp_z[z] * box->damp_y[y];

        for (int line = 0; line < FT_LINES; line++) {
            double all = factor * box->damp_x[x + (size_t)line];

            re[line] *= all;
            im[line] *= all;
        }
    }
}

/* Damped waves back to space; waves stay. */
static void transform_back(const struct box *box)
{
    size_t nx = (size_t)box->nx, plane = nx * (size_t)box->ny, slab = nx * (size_t)box->my_y;
    struct number *packed = npb_ranks() > 1 ? box->packed : box->space;

    for (int y = 0; y < box->my_y; y++)
        for (size_t x = 0; x < nx; x += FT_LINES) {
            size_t at = (size_t)y * nx + x;

            load(box->waves + at, slab, box->nz, 0);
            damp(box, y, x);
            store(ft_transform_back(&box->roots_z, &lines[0], &lines[1]), 0, box->nz, slab, box->space + at);
        }
    if (npb_ranks() > 1)
        turn(box, box->space, packed);
    for (int z = 0; z < box->my_z; z++) {
        struct number *out = box->space + (size_t)z * plane;

        for (size_t x = 0; x < nx; x += FT_LINES) {
            for (int rank = 0; rank < npb_ranks(); rank++)
                load(find_packed(box, packed, rank, z) + x, nx, box->my_y, rank * box->my_y);
            store(ft_transform_back(&box->roots_y, &lines[0], &lines[1]), 0, box->ny, nx, out + x);
        }
        transform_x(box, out, ft_transform_back);
    }
}

static void fill(const struct box *box)
{
    size_t count = (size_t)box->my_z * (size_t)box->ny * (size_t)box->nx;
    uint64_t state = npb_random_skip(NPB_SEED, 2 * count * (uint64_t)npb_rank());

    for (size_t i = 0; i < count; i++) {
        box->space[i].re = npb_random(&state);
        box->space[i].im = npb_random(&state);
    }
}

/* factors[i] = exp(-4 alpha pi^2 k^2 step), k the wave number of index `first + i`: 0 ... n/2 - 1, -n/2 ... -1. */
static void find_damping(double *factors, int n, int first, int count, int step)
{
    for (int i = 0; i < count; i++) {
        int k = (first + i + n / 2) % n - n / 2;

        factors[i] = exp(-4e-6 * M_PI * M_PI * k * k * step);
    }
}

static struct number add_points(const struct box *box)
{
    double mine[2] = {0}, sums[2], points = (double)box->nx * box->ny * box->nz;
    int first = box->my_z * npb_rank();

    for (int j = 1; j <= SUMMANDS; j++) {
        int x = j % box->nx, y = 3 * j % box->ny, z = 5 * j % box->nz - first;
        const struct number *at = box->space + ((size_t)z * (size_t)box->ny + (size_t)y) * (size_t)box->nx + x;

        if (z >= 0 && z < box->my_z) {
            mine[0] += at->re;
            mine[1] += at->im;
        }
    }
    MPI_Allreduce(mine, sums, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return (struct number){sums[0] / points, sums[1] / points};
}

static void set_up(struct box *box, const struct problem *problem)
{
    size_t points = (size_t)problem->nx * (size_t)problem->ny * (size_t)problem->nz / (size_t)npb_ranks();
    int blocks = npb_ranks() > 1 ? 3 : 2;

    npb_require_memory((double)points * sizeof(struct number) * blocks);
    box->nx = problem->nx;
    box->ny = problem->ny;
    box->nz = problem->nz;
    box->my_y = problem->ny / npb_ranks();
    box->my_z = problem->nz / npb_ranks();
    box->waves = npb_allocate(points, sizeof *box->waves);
    box->space = npb_allocate(points, sizeof *box->space);
    box->packed = blocks == 3 ? npb_allocate(points, sizeof *box->packed) : NULL;
    box->damp_x = npb_allocate(FT_LONGEST, sizeof(double));
    box->damp_y = npb_allocate(FT_LONGEST, sizeof(double));
    box->damp_z = npb_allocate(FT_LONGEST, sizeof(double));
}

static void tear_down(struct box *box)
{
    free(box->waves);
    free(box->space);
    free(box->packed);
    free(box->damp_x);
    free(box->damp_y);
    free(box->damp_z);
}

static void begin(struct box *box)
{
    ft_roots_make(&box->roots_x, box->nx);
    ft_roots_make(&box->roots_y, box->ny);
    ft_roots_make(&box->roots_z, box->nz);
    fill(box);
    transform_forward(box);
}

static struct number advance(struct box *box, int step)
{
    find_damping(box->damp_x, box->nx, 0, box->nx, step);
    find_damping(box->damp_y, box->ny, box->my_y * npb_rank(), box->my_y, step);
    find_damping(box->damp_z, box->nz, 0, box->nz, step);
    transform_back(box);
    return add_points(box);
}

int main(int argc, char **argv)
{
    struct npb_result result = {.operations = "floating point"};
    const struct problem *problem;
    static struct box box;
    struct number sums[MOST_STEPS];
    double points;

    npb_init(&argc, &argv, "FT");
    problem = &problems[npb_class_index()];
    npb_require_power_of_two(problem->ny < problem->nz ? problem->ny : problem->nz);
    set_up(&box, problem);
    begin(&box);

    npb_start();
    begin(&box);
    for (int step = 1; step <= problem->steps; step++) {
        sums[step - 1] = advance(&box, step);
        npb_say(" T = %4d     Checksum = %21.12E %21.12E\n", step, sums[step - 1].re, sums[step - 1].im);
    }
    result.seconds = npb_stop();
    tear_down(&box);

    result.verified = true;
    for (int step = 0; step < problem->steps; step++) {
        result.verified &= npb_close("Real part", sums[step].re, problem->sums[step].re, 1e-12);
        result.verified &= npb_close("Imaginary", sums[step].im, problem->sums[step].im, 1e-12);
    }
    points = (double)problem->nx * problem->ny * problem->nz;
    snprintf(result.size, sizeof result.size, "%dx%dx%d", problem->nx, problem->ny, problem->nz);
    result.iterations = problem->steps;
    result.mop = 1e-6 * points * (14.8157 + 7.19641 * log(points) + (5.23518 + 7.21113 * log(points)) * problem->steps);
    return npb_report(&result);
}
