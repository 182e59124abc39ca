/*
 * mpi_ordered SEED CASES: makes so many reductions drawn at random, of values whose sums and products depend on the
 * order, and prints a number of the bits of all results, how many of them differ from results combined from
 * rank 0 on one after the other, and whether any was done by levels; for
 * tests/integration/test_native_mpi_ordered.py and tests/system/test_deterministic_jobs.py. With SECONDS it repeats
 * them for so long at least, and prints instead of the last whether all rounds had the same bits. With the variable
 * APART no buffer is in place.
 */
#include "page.h"

#include <complex.h>
#include <dlfcn.h>
#include <math.h>
#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 30000, WIDEST = 32, MOST_RANKS = 64 };
enum { REDUCE, ALLREDUCE, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, SCAN, EXSCAN, IALLREDUCE, WHATS };
enum { DOUBLES, FLOATS, COMPLEX, EXTREMES, MAPS, PLACES, INTS, KINDS };

static uint64_t state; /* the same at all ranks */
static int rank, size;
static MPI_Datatype map_type;
static MPI_Op compose;
static char input[LARGEST * WIDEST], output[LARGEST * WIDEST], folded[2][LARGEST * WIDEST], packed[LARGEST * WIDEST];

static unsigned draw(unsigned limit)
{
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (unsigned)(state >> 33) % limit;
}

static uint64_t hash(uint64_t from, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        from = (from ^ ((const unsigned char *)data)[i]) * 0x100000001b3U;
    return from;
}

/* Maps x -> a x + b, one after the other: which is neither commutative nor, with rounding, associative. */
static void compose_maps(void *in, void *inout, int *count, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *count; i++) {
        const double *first = (const double *)in + 3 * (ptrdiff_t)i;
        double *second = (double *)inout + 3 * (ptrdiff_t)i;

        second[2] = second[0] * first[2] + second[2];
        second[0] *= first[0];
    }
}

static double number(unsigned drawn)
{
    static const double numbers[] = {1e16, 1, -1e16, 0.1, 3, -1 / 3.0, 1e-3, 7e15};

    return numbers[drawn % 8];
}

/* splitmix64 */
static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15U;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9U;
    value = (value ^ value >> 27) * 0x94d049bb133111ebU;
    return value ^ value >> 31;
}

/* Bytes of memory that hold so many elements of any kind, with room behind them. */
static size_t room_for(int count)
{
    return (size_t)(count + MOST_RANKS) * WIDEST;
}

/* The contribution of a rank: the same at every rank that computes it. */
static void fill(char *memory, int kind, int count, int of, uint64_t salt)
{
    static const double extremes[] = {0.0, -0.0, NAN, -1.0};

    memset(memory, 0, room_for(count));
    salt = mix(salt + (uint64_t)of);
    for (int i = 0; i < count; i++) {
        unsigned drawn = (unsigned)(mix(salt + (uint64_t)i) >> 20);

        switch (kind) {
        case DOUBLES:
            ((double *)memory)[i] = number(drawn);
            break;
        case FLOATS:
            ((float *)memory)[i] = (float)number(drawn);
            break;
        case COMPLEX:
            ((double complex *)memory)[i] = 1 + number(drawn) / 1e16 + 0.1 * (drawn >> 5 & 7) * I;
            break;
        case EXTREMES:
            ((double *)memory)[i] = extremes[drawn % 4];
            break;
        case MAPS:
            ((double *)memory)[3 * i] = 1 + 0.1 * (drawn % 7);
            ((double *)memory)[3 * i + 2] = number(drawn >> 4);
            break;
        case PLACES:
            ((struct { double value; int place; } *)memory)[i].value = extremes[drawn % 2];
            ((struct { double value; int place; } *)memory)[i].place = of;
            break;
        default:
            ((int *)memory)[i] = (int)drawn;
        }
    }
}

static MPI_Datatype type_of(int kind)
{
    const MPI_Datatype types[KINDS] = {MPI_DOUBLE, MPI_FLOAT,      MPI_C_DOUBLE_COMPLEX, MPI_DOUBLE,
                                       map_type,   MPI_DOUBLE_INT, MPI_INT};
    return types[kind];
}

static MPI_Op operator_of(int kind)
{
    const MPI_Op operators[KINDS] = {MPI_SUM, MPI_SUM, MPI_PROD, MPI_MAX, compose, MPI_MAXLOC, MPI_SUM};
    return operators[kind];
}

static int call(int what, const void *sent, void *got, const int *counts, int count, int kind, int root, MPI_Comm comm)
{
    MPI_Datatype type = type_of(kind);
    MPI_Op operator= operator_of(kind);
    MPI_Request request;

    switch (what) {
    case REDUCE:
        return MPI_Reduce(sent, got, count, type, operator, root, comm);
    case ALLREDUCE:
        return MPI_Allreduce(sent, got, count, type, operator, comm);
    case REDUCE_SCATTER:
        return MPI_Reduce_scatter(sent, got, counts, type, operator, comm);
    case REDUCE_SCATTER_BLOCK:
        return MPI_Reduce_scatter_block(sent, got, counts[0], type, operator, comm);
    case SCAN:
        return MPI_Scan(sent, got, count, type, operator, comm);
    case EXSCAN:
        return MPI_Exscan(sent, got, count, type, operator, comm);
    default:
        return MPI_Iallreduce(sent, got, count, type, operator, comm, &request) ||
               MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

/* The bytes of elements, one after the other: their number. */
static int pack(const char *from, int first, int count, int kind)
{
    MPI_Aint lower, extent;
    int bytes = 0;

    PMPI_Type_get_extent(type_of(kind), &lower, &extent);
    PMPI_Pack(from + first * extent, count, type_of(kind), packed, sizeof packed, &bytes, MPI_COMM_SELF);
    return bytes;
}

/* Whether the result equals the one combined from rank 0 on. Adds its bits to `bits`. */
static bool check(int first, int count, int all, int last, int kind, uint64_t salt, const int *world, uint64_t *bits)
{
    static char got[sizeof packed];
    int bytes = pack(output, 0, count, kind);

    memcpy(got, packed, (size_t)bytes);
    *bits = hash(*bits, got, (size_t)bytes);
    fill(folded[0], kind, all, world[0], salt);
    for (int i = 1; i <= last; i++) {
        fill(folded[i % 2], kind, all, world[i], salt);
        PMPI_Reduce_local(folded[(i - 1) % 2], folded[i % 2], all, type_of(kind), operator_of(kind));
    }
    pack(folded[last % 2], first, count, kind);
    return !memcmp(got, packed, (size_t)bytes);
}

static bool one_case(MPI_Comm comm, int most, uint64_t *bits)
{
    int what = (int)draw(WHATS), kind = (int)draw(KINDS), own, ranks, all = 0, count, root, first = 0, many;
    int counts[MOST_RANKS], world[MOST_RANKS];
    uint64_t salt = state;
    bool in_place = draw(2) && what != IALLREDUCE && !getenv("APART"), is_right = true;

    PMPI_Comm_rank(comm, &own);
    PMPI_Comm_size(comm, &ranks);
    PMPI_Allgather(&rank, 1, MPI_INT, world, 1, MPI_INT, comm);
    root = (int)draw(1 << 20) % ranks;
    count = draw(3) ? 1 + (int)draw(9) : most / 2 + (int)draw((unsigned)most / 2);
    for (int i = 0; i < ranks; i++) {
        counts[i] = what == REDUCE_SCATTER ? (int)draw((unsigned)count) / ranks : count / ranks + 1;
        all += counts[i];
    }
    if (what == REDUCE_SCATTER || what == REDUCE_SCATTER_BLOCK)
        count = all;
    fill(input, kind, count, rank, salt);
    in_place = in_place && (what != REDUCE || own == root);
    memcpy(output, input, room_for(count));
    if (call(what, in_place ? MPI_IN_PLACE : input, output, counts, count, kind, root, comm))
        return false;
    many = count;
    if (what == REDUCE_SCATTER || what == REDUCE_SCATTER_BLOCK) {
        for (int i = 0; i < own; i++)
            first += counts[i];
        many = counts[own];
    }
    if ((what == REDUCE && own != root) || (what == EXSCAN && !own) || !count)
        return true;
    is_right = check(first, many, count, what == SCAN ? own : what == EXSCAN ? own - 1 : ranks - 1, kind, salt, world,
                     bits);
    return is_right || what == IALLREDUCE;
}

static uint64_t round_of(uint64_t seed, int cases, int *differ)
{
    uint64_t bits = 0xcbf29ce484222325U, all[MOST_RANKS];

    state = seed;
    *differ = 0;
    for (int i = 0; i < cases; i++) {
        MPI_Comm comm = MPI_COMM_WORLD;

        if (i % 4 == 3)
            PMPI_Comm_split(MPI_COMM_WORLD, 0, draw(2) ? -rank : (rank * 5) % 7, &comm);
        for (int j = 0; j < 4; j++)
            *differ += !one_case(comm, i % 2 ? 900 : LARGEST - MOST_RANKS, &bits);
        if (comm != MPI_COMM_WORLD)
            MPI_Comm_free(&comm);
    }
    PMPI_Allgather(&bits, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, MPI_COMM_WORLD);
    PMPI_Allreduce(MPI_IN_PLACE, differ, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    return hash(0xcbf29ce484222325U, all, sizeof *all * (size_t)size);
}

int main(int count, char **words)
{
    const struct anchor *anchor = dlsym(RTLD_DEFAULT, "wherry_mpi_anchor");
    double begun, seconds = count > 3 ? atof(words[3]) : 0;
    uint64_t seed, bits;
    int cases, differ, over, rounds = 1;
    bool same = true;

    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (count < 3 || size > MOST_RANKS)
        MPI_Abort(MPI_COMM_WORLD, 2);
    seed = strtoull(words[1], NULL, 10);
    cases = atoi(words[2]);
    PMPI_Type_vector(2, 1, 2, MPI_DOUBLE, &map_type);
    PMPI_Type_commit(&map_type);
    PMPI_Op_create(compose_maps, 0, &compose);
    begun = PMPI_Wtime();
    bits = round_of(seed, cases, &differ);
    do {
        int again;

        over = PMPI_Wtime() - begun >= seconds;
        PMPI_Bcast(&over, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (!over && ++rounds)
            same = round_of(seed, cases, &again) == bits && same;
    } while (!over);
    if (!rank) {
        const char *by = anchor && ((const struct page *)(uintptr_t)anchor->address)->by_levels ? "by levels" : "plain";

        fprintf(stderr, "%d rounds\n", rounds);
        printf("%016llx, %s in order, %s\n", (unsigned long long)bits, differ ? "not" : "all",
               seconds <= 0 ? by : same ? "the same again" : "not the same again");
    }
    PMPI_Op_free(&compose);
    PMPI_Type_free(&map_type);
    MPI_Finalize();
    return 0;
}
