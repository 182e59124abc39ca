/*
 * wherry-shallow: the shallow-water equations on a periodic plane, as the core of a weather model, with MPI.
 *
 *   mpirun ... wherry-shallow [--n N] [--steps S] [--every E] [--field FILE]
 *
 * Finite volumes on N x N cells, each rank has a block of them (MPI_Dims_create). In each step a rank exchanges a halo
 * of one cell with four neighbours; the fluxes are Rusanov's, the step in time is fixed, so its stability is checked
 * with the output: a hump of water falls, runs around the plane and through itself. Every E steps rank 0 prints "Time
 * step S", the checksum of the state and the water's volume, and with --field all write the heights (doubles, row by
 * row) to FILE, over those before. The checksum is a sum of mixed bits of all cells modulo 2^64, so it does not depend
 * on the number of ranks: a difference of one bit in one cell gives another one. Prints in the form of the NAS programs
 * at the end. Exit code 1: water was lost, or the state is not finite.
 */
#include <getopt.h>
#include <math.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIELDS = 3, HEIGHT = 0, EAST = 1, NORTH = 2 };

static const double GRAVITY = 9.81, DEPTH = 1.0, HUMP = 0.2, COURANT = 0.2, VOLUME_ERROR = 1e-9;

struct options {
    long n, steps, every;
    const char *file;
};

struct model {
    struct options options;
    MPI_Comm plane;
    int rank, ranks, before[2], after[2]; /* neighbours in each dimension: 0 is y, 1 is x */
    long first[2], size[2];               /* the block: its first cell, and how many */
    double ratio;                         /* length of a step over that of a cell */
    double *now[FIELDS], *next[FIELDS];   /* (size[0] + 2) x (size[1] + 2), with the halo */
    double *sent[2], *got[2];             /* columns of all fields; rows are sent field by field */
    double volume;
};

static size_t at(const struct model *model, long y, long x)
{
    return (size_t)(y + 1) * (size_t)(model->size[1] + 2) + (size_t)(x + 1);
}

/* The finalizer of splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

static void *room_for(size_t count)
{
    void *room = calloc(count, sizeof(double));

    if (!room) {
        fputs("wherry-shallow: no memory for --n\n", stderr);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return room;
}

static void divide(struct model *model)
{
    int dims[2] = {0, 0}, periodic[2] = {1, 1}, place[2];

    MPI_Dims_create(model->ranks, 2, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periodic, 0, &model->plane);
    MPI_Cart_coords(model->plane, model->rank, 2, place);
    for (int dim = 0; dim < 2; dim++) {
        MPI_Cart_shift(model->plane, dim, 1, &model->before[dim], &model->after[dim]);
        model->first[dim] = model->options.n * place[dim] / dims[dim];
        model->size[dim] = model->options.n * (place[dim] + 1) / dims[dim] - model->first[dim];
    }
}

static void allocate(struct model *model)
{
    size_t cells = (size_t)(model->size[0] + 2) * (size_t)(model->size[1] + 2);

    for (int field = 0; field < FIELDS; field++) {
        model->now[field] = room_for(cells);
        model->next[field] = room_for(cells);
    }
    for (int side = 0; side < 2; side++) {
        model->sent[side] = room_for(FIELDS * (size_t)model->size[0]);
        model->got[side] = room_for(FIELDS * (size_t)model->size[0]);
    }
}

static void begin(struct model *model)
{
    double n = (double)model->options.n;

    for (long y = 0; y < model->size[0]; y++)
        for (long x = 0; x < model->size[1]; x++) {
            double from_y = ((double)(model->first[0] + y) + 0.5) / n - 0.4;
            double from_x = ((double)(model->first[1] + x) + 0.5) / n - 0.6;

            model->now[HEIGHT][at(model, y, x)] = DEPTH + HUMP * exp(-100 * (from_y * from_y + from_x * from_x));
        }
    model->ratio = COURANT / sqrt(GRAVITY * (DEPTH + HUMP));
}

static void exchange_rows(struct model *model)
{
    int width = (int)model->size[1];
    long last = model->size[0] - 1;

    for (int field = 0; field < FIELDS; field++) {
        double *cells = model->now[field];

        MPI_Sendrecv(cells + at(model, 0, 0), width, MPI_DOUBLE, model->before[0], 1, cells + at(model, last + 1, 0),
                     width, MPI_DOUBLE, model->after[0], 1, model->plane, MPI_STATUS_IGNORE);
        MPI_Sendrecv(cells + at(model, last, 0), width, MPI_DOUBLE, model->after[0], 2, cells + at(model, -1, 0), width,
                     MPI_DOUBLE, model->before[0], 2, model->plane, MPI_STATUS_IGNORE);
    }
}

static void exchange_columns(struct model *model)
{
    long height = model->size[0], last = model->size[1] - 1;
    int count = (int)(FIELDS * height);

    for (int field = 0; field < FIELDS; field++)
        for (long y = 0; y < height; y++) {
            model->sent[0][field * height + y] = model->now[field][at(model, y, 0)];
            model->sent[1][field * height + y] = model->now[field][at(model, y, last)];
        }
    MPI_Sendrecv(model->sent[0], count, MPI_DOUBLE, model->before[1], 3, model->got[1], count, MPI_DOUBLE,
                 model->after[1], 3, model->plane, MPI_STATUS_IGNORE);
    MPI_Sendrecv(model->sent[1], count, MPI_DOUBLE, model->after[1], 4, model->got[0], count, MPI_DOUBLE,
                 model->before[1], 4, model->plane, MPI_STATUS_IGNORE);
    for (int field = 0; field < FIELDS; field++)
        for (long y = 0; y < height; y++) {
            model->now[field][at(model, y, last + 1)] = model->got[1][field * height + y];
            model->now[field][at(model, y, -1)] = model->got[0][field * height + y];
        }
}

/* Rusanov's flux of all fields between two cells, in the direction of momentum `along`. */
static inline void flux_between(double *const *cells, size_t one, size_t other, int along, double *flux)
{
    double h[2] = {cells[HEIGHT][one], cells[HEIGHT][other]};
    double m[2] = {cells[along][one], cells[along][other]};
    double across[2] = {cells[EAST + NORTH - along][one], cells[EAST + NORTH - along][other]};
    double v[2] = {m[0] / h[0], m[1] / h[1]};
    double fastest = fmax(fabs(v[0]) + sqrt(GRAVITY * h[0]), fabs(v[1]) + sqrt(GRAVITY * h[1]));

    flux[HEIGHT] = 0.5 * (m[0] + m[1] - fastest * (h[1] - h[0]));
    flux[along] = 0.5 * (m[0] * v[0] + 0.5 * GRAVITY * h[0] * h[0] + m[1] * v[1] + 0.5 * GRAVITY * h[1] * h[1] -
                         fastest * (m[1] - m[0]));
    flux[EAST + NORTH - along] = 0.5 * (across[0] * v[0] + across[1] * v[1] - fastest * (across[1] - across[0]));
}

static void step(struct model *model)
{
    exchange_rows(model);
    exchange_columns(model);
    for (long y = 0; y < model->size[0]; y++)
        for (long x = 0; x < model->size[1]; x++) {
            size_t here = at(model, y, x);
            double west[FIELDS], east[FIELDS], south[FIELDS], north[FIELDS];

            flux_between(model->now, at(model, y, x - 1), here, EAST, west);
            flux_between(model->now, here, at(model, y, x + 1), EAST, east);
            flux_between(model->now, at(model, y - 1, x), here, NORTH, south);
            flux_between(model->now, here, at(model, y + 1, x), NORTH, north);
            for (int field = 0; field < FIELDS; field++)
                model->next[field][here] = model->now[field][here] - model->ratio * (east[field] - west[field]) -
                                           model->ratio * (north[field] - south[field]);
        }
    for (int field = 0; field < FIELDS; field++) {
        double *kept = model->now[field];

        model->now[field] = model->next[field];
        model->next[field] = kept;
    }
}

/* Returns the checksum of the state; keeps the volume. */
static uint64_t checksum(struct model *model)
{
    uint64_t mine = 0, sum;
    double volume = 0;

    for (long y = 0; y < model->size[0]; y++)
        for (long x = 0; x < model->size[1]; x++) {
            uint64_t cell = (uint64_t)(model->first[0] + y) * (uint64_t)model->options.n +
                            (uint64_t)(model->first[1] + x);

            for (int field = 0; field < FIELDS; field++) {
                uint64_t bits;

                memcpy(&bits, &model->now[field][at(model, y, x)], sizeof bits);
                mine += mix(mix(cell * FIELDS + (uint64_t)field) ^ bits);
            }
            volume += model->now[HEIGHT][at(model, y, x)];
        }
    MPI_Allreduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, model->plane);
    MPI_Allreduce(&volume, &model->volume, 1, MPI_DOUBLE, MPI_SUM, model->plane);
    return sum;
}

static void write_field(const struct model *model)
{
    int n[2] = {(int)model->options.n, (int)model->options.n};
    int size[2] = {(int)model->size[0], (int)model->size[1]}, first[2] = {(int)model->first[0], (int)model->first[1]};
    int inner[2] = {size[0] + 2, size[1] + 2}, one[2] = {1, 1};
    MPI_Datatype in_file, in_memory;
    MPI_File file;

    MPI_Type_create_subarray(2, n, size, first, MPI_ORDER_C, MPI_DOUBLE, &in_file);
    MPI_Type_create_subarray(2, inner, size, one, MPI_ORDER_C, MPI_DOUBLE, &in_memory);
    MPI_Type_commit(&in_file);
    MPI_Type_commit(&in_memory);
    if (MPI_File_open(model->plane, model->options.file, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file)) {
        fprintf(stderr, "wherry-shallow: %s cannot be written\n", model->options.file);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_File_set_view(file, 0, MPI_DOUBLE, in_file, "native", MPI_INFO_NULL);
    MPI_File_write_all(file, model->now[HEIGHT], 1, in_memory, MPI_STATUS_IGNORE);
    MPI_File_close(&file);
    MPI_Type_free(&in_file);
    MPI_Type_free(&in_memory);
}

static struct options read_options(int argc, char **argv, int rank)
{
    static const struct option known[] = {{"n", required_argument, NULL, 'n'},
                                          {"steps", required_argument, NULL, 's'},
                                          {"every", required_argument, NULL, 'e'},
                                          {"field", required_argument, NULL, 'f'},
                                          {0}};
    struct options options = {.n = 256, .steps = 1000, .every = 100};
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) >= 0) {
        if (option == 'n')
            options.n = atol(optarg);
        else if (option == 's')
            options.steps = atol(optarg);
        else if (option == 'e')
            options.every = atol(optarg);
        else if (option == 'f')
            options.file = optarg;
        else
            optind = argc + 1;
    }
    if (optind != argc || options.n < 1 || options.n > 32768 || options.steps < 1 || options.every < 1) {
        if (rank == 0)
            fputs("usage: wherry-shallow [--n N] [--steps S] [--every E] [--field FILE]\n", stderr);
        MPI_Finalize();
        exit(2);
    }
    return options;
}

/* Returns the last checksum. */
static uint64_t run(struct model *model)
{
    uint64_t sum = 0;

    for (long number = 1; number <= model->options.steps; number++) {
        step(model);
        if (number % model->options.every && number != model->options.steps)
            continue;
        sum = checksum(model);
        if (model->options.file)
            write_field(model);
        if (model->rank == 0) {
            printf(" Time step %8ld  checksum %016llx  volume %.15e\n", number, (unsigned long long)sum, model->volume);
            fflush(stdout);
        }
    }
    return sum;
}

int main(int argc, char **argv)
{
    struct model model = {0};
    double start, seconds, slowest, volume;
    uint64_t sum;
    bool right;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &model.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &model.ranks);
    model.options = read_options(argc, argv, model.rank);
    divide(&model);
    if (model.size[0] < 1 || model.size[1] < 1) {
        fputs("wherry-shallow: --n has fewer cells in a row than there are ranks\n", stderr);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    allocate(&model);
    begin(&model);
    checksum(&model);
    volume = model.volume;
    start = MPI_Wtime();
    sum = run(&model);
    seconds = MPI_Wtime() - start;
    MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, model.plane);
    right = fabs(model.volume - volume) <= VOLUME_ERROR * volume; /* false for NaN */
    if (model.rank == 0) {
        printf(" Shallow water, %ld x %ld cells, %ld steps, %d processes\n", model.options.n, model.options.n,
               model.options.steps, model.ranks);
        printf(" Checksum        = %016llx\n", (unsigned long long)sum);
        printf(" Time in seconds = %.3f\n", slowest);
        printf(" Verification    = %s\n", right ? "SUCCESSFUL" : "UNSUCCESSFUL");
    }
    for (int field = 0; field < FIELDS; field++) {
        free(model.now[field]);
        free(model.next[field]);
    }
    for (int side = 0; side < 2; side++) {
        free(model.sent[side]);
        free(model.got[side]);
    }
    MPI_Comm_free(&model.plane);
    MPI_Finalize();
    return !right;
}
