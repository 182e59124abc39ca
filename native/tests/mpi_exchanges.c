/*
 * mpi_exchanges SEED CASES [moves]: makes so many collectives of all kinds drawn at random, each as the program
 * calls it and by the library's own profiling name, on a few communicators, and compares what they leave in memory;
 * for tests/integration/test_native_mpi_exchanges.py. Ranks describe the same data by types of their own.
 *
 * With `moves`, nodes seem to move all the time: a new map of sites comes every few calls, and each rank gets it
 * some calls sooner or later than others, at times in halves. Then all get one, and the next barrier must adopt
 * it.
 */
#include "map.h"
#include "page.h"

#include <dlfcn.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpi_moves.h"
#include "mpi_types.h"

enum { CAPACITY = 1 << 20, BEHIND = 1 << 12, MOST_RANKS = 16, COMMS = 4, LARGE = 3 << 18, HEAVY = 1 << 18 };
enum { BARRIER, BCAST, REDUCE, ALLREDUCE, GATHER, GATHERV, SCATTER, SCATTERV, ALLGATHER, ALLGATHERV, ALLTOALL,
      ALLTOALLV, REDUCE_SCATTER_BLOCK, REDUCE_SCATTER, SCAN, EXSCAN, KINDS };

/* The same data by another type: `factor` of them for an element, of so many ints of memory each. */
struct shape {
    MPI_Datatype type;
    int factor, ints;
};

static uint64_t common, own_state; /* the same at all ranks; and of this rank alone */
static int own, ranks; /* of the communicator */
static int sent[CAPACITY], got[2][CAPACITY], contents[CAPACITY];

static unsigned draw(unsigned limit)
{
    return next(&common, limit);
}

/* One of the types for a kind of data. */
static struct shape draw_shape(unsigned kind, uint64_t *from)
{
    const struct shape shapes[4][3] = {
        {{MPI_INT, 4, 1}, {matrix, 1, 4}, {MPI_2INT, 2, 2}},
        {{MPI_INT, 3, 1}, {gaps, 1, 5}, {gaps, 1, 5}},
        {{MPI_INT, 2, 1}, {backwards, 1, 2}, {MPI_2INT, 1, 2}},
        {{MPI_DOUBLE, 1, 2}, {MPI_DOUBLE, 1, 2}, {MPI_DOUBLE, 1, 2}},
    };

    return shapes[kind][next(from, 3)];
}

static void make_contents(void)
{
    for (int i = 0; i < CAPACITY; i++)
        contents[i] = (rank * 7919 + i * 31) % 13;
}

/* Counts for all, and places in the memory of a rank that has all of them, with gaps, in a drawn direction. */
static void draw_places(const int *elements, struct shape shape, unsigned direction, const unsigned *spaces,
                        int *counts, int *places)
{
    int begin = 0;

    for (int i = 0; i < ranks; i++) {
        int one = direction ? ranks - 1 - i : i;

        counts[one] = elements[one] * shape.factor;
        places[one] = begin + (int)spaces[i];
        begin = places[one] + counts[one];
    }
}

#define EITHER(name, ...) (plain ? PMPI_##name(__VA_ARGS__) : MPI_##name(__VA_ARGS__))

/* The definition of one case: the same for both ways to call it. */
struct drawn {
    int what, root, count;
    bool in_place;
    size_t ints; /* of memory that the case may touch, and some behind it that nobody may */
    struct shape out, in; /* of the sent and received data of this rank */
    int out_counts[MOST_RANKS], out_places[MOST_RANKS], in_counts[MOST_RANKS], in_places[MOST_RANKS];
    MPI_Datatype type;
    MPI_Op operator;
};

static int call(const struct drawn *d, bool plain, int *into, MPI_Comm comm)
{
    void *mine = d->in_place && (d->what >= ALLGATHER || d->what == ALLREDUCE || own == d->root) ? MPI_IN_PLACE : sent;
    void *place = d->in_place && own == d->root ? MPI_IN_PLACE : into;
    int out = d->count * d->out.factor, in = d->count * d->in.factor;

    switch (d->what) {
    case BARRIER:
        return EITHER(Barrier, comm);
    case BCAST:
        return EITHER(Bcast, into, in, d->in.type, d->root, comm);
    case REDUCE:
        return EITHER(Reduce, mine, into, d->count, d->type, d->operator, d->root, comm);
    case ALLREDUCE:
        return EITHER(Allreduce, mine, into, d->count, d->type, d->operator, comm);
    case GATHER:
        return EITHER(Gather, mine, out, d->out.type, into, in, d->in.type, d->root, comm);
    case GATHERV:
        return EITHER(Gatherv, mine, d->out_counts[own], d->out.type, into, d->in_counts, d->in_places, d->in.type,
                      d->root, comm);
    case SCATTER:
        return EITHER(Scatter, sent, out, d->out.type, place, in, d->in.type, d->root, comm);
    case SCATTERV:
        return EITHER(Scatterv, sent, d->out_counts, d->out_places, d->out.type, place, d->in_counts[own], d->in.type,
                      d->root, comm);
    case ALLGATHER:
        return EITHER(Allgather, mine, out, d->out.type, into, in, d->in.type, comm);
    case ALLGATHERV:
        return EITHER(Allgatherv, mine, d->out_counts[own], d->out.type, into, d->in_counts, d->in_places,
                      d->in.type, comm);
    case ALLTOALL:
        return EITHER(Alltoall, mine, out, d->out.type, into, in, d->in.type, comm);
    case ALLTOALLV:
        return EITHER(Alltoallv, mine, d->out_counts, d->out_places, d->out.type, into, d->in_counts, d->in_places,
                      d->in.type, comm);
    case REDUCE_SCATTER_BLOCK:
        return EITHER(Reduce_scatter_block, mine, into, d->count, d->type, d->operator, comm);
    case REDUCE_SCATTER:
        return EITHER(Reduce_scatter, mine, into, d->in_counts, d->type, d->operator, comm);
    case SCAN:
        return EITHER(Scan, mine, into, d->count, d->type, d->operator, comm);
    default:
        return EITHER(Exscan, mine, into, d->count, d->type, d->operator, comm);
    }
}

/* The elements that a rank has for another one: the same both ways, as in place they must be. */
static int between(const int elements[MOST_RANKS][MOST_RANKS], int one, int other)
{
    return one < other ? elements[one][other] : elements[other][one];
}

static struct drawn draw_case(void)
{
    const MPI_Op operators[] = {MPI_SUM, MPI_BXOR, product};
    unsigned most = draw(4) ? 9 : draw(4) ? 3000 : 24000, kind = draw(4), direction = draw(2);
    unsigned out_spaces[MOST_RANKS] = {0}, in_spaces[MOST_RANKS] = {0};
    int table[MOST_RANKS][MOST_RANKS], out[MOST_RANKS] = {0}, in[MOST_RANKS] = {0}, operator = (int)draw(3);
    struct drawn d = {.what = (int)draw(KINDS), .root = (int)draw((unsigned)ranks), .in_place = draw(2)};

    most = most * 5 * (unsigned)ranks < CAPACITY ? most : CAPACITY / 5 / (unsigned)ranks;
    d.count = (int)draw(most);
    d.ints = (5 * (size_t)most + 5 * 2) * (size_t)ranks + BEHIND; /* at most 5 for an element; gaps of at most 2 */
    d.ints = d.ints < CAPACITY ? d.ints : CAPACITY;
    for (int i = 0; i < ranks; i++) {
        out_spaces[i] = draw(3);
        in_spaces[i] = draw(3);
        for (int j = 0; j < ranks; j++)
            table[i][j] = draw(5) ? (int)draw(most - most / 100) : 0;
    }
    for (int i = 0; i < ranks; i++)
        out[i] = in[i] = d.what == ALLTOALLV ? between(table, own, i) : table[0][i];
    /* As this rank alone describes it; but MPICH 4.0's and Open MPI 4.1's own allgatherv fail where ranks differ. */
    d.out = draw_shape(kind, d.what == ALLGATHERV ? &common : &own_state);
    d.in = draw_shape(kind, d.what == ALLGATHERV ? &common : &own_state);
    draw_places(out, d.out, direction, out_spaces, d.out_counts, d.out_places);
    draw_places(in, d.in, !direction, in_spaces, d.in_counts, d.in_places);
    if (d.what == REDUCE_SCATTER)
        for (int i = 0; i < ranks; i++)
            d.in_counts[i] = in[i];
    d.type = operator == 2 ? matrix : MPI_INT;
    d.operator = operators[operator];
    return d;
}

/* Ints of the result that are compared: behind those of a reduce_scatter in place a library may leave anything. */
static size_t compared(const struct drawn *d)
{
    size_t each = d->type == matrix ? 4 : 1;

    if ((d->what == REDUCE && own != d->root) || (d->what == EXSCAN && !own))
        return 0;
    if (d->what == REDUCE_SCATTER_BLOCK)
        return each * (size_t)d->count;
    return d->what == REDUCE_SCATTER ? each * (size_t)d->in_counts[own] : d->ints;
}

static bool one_case(MPI_Comm comm, int *what)
{
    struct drawn d;

    PMPI_Comm_rank(comm, &own);
    PMPI_Comm_size(comm, &ranks);
    d = draw_case();
    *what = d.what;
    memcpy(sent, contents, d.ints * sizeof(int));
    for (int plain = 0; plain < 2; plain++)
        memcpy(got[plain], contents, d.ints * sizeof(int));
    for (int plain = 0; plain < 2; plain++)
        if (call(&d, plain, got[plain], comm))
            return false;
    return !memcmp(got[0], got[1], compared(&d) * sizeof(int));
}

/* A large allgather, gatherv, bcast and allreduce, whose messages libraries ask about before they send them. */
static bool large_case(void)
{
    int *mine = malloc(sizeof(int) * LARGE), *all[2], counts[MOST_RANKS], places[MOST_RANKS];
    bool same;

    for (int i = 0; i < size; i++) {
        counts[i] = LARGE;
        places[i] = i * LARGE;
    }
    for (int plain = 0; plain < 2; plain++)
        all[plain] = calloc((size_t)LARGE * (size_t)size, sizeof(int));
    for (int i = 0; i < LARGE; i++)
        mine[i] = rank * 3 + i;
    MPI_Allgather(mine, LARGE, MPI_INT, all[0], LARGE, MPI_INT, MPI_COMM_WORLD);
    MPI_Gatherv(mine, LARGE, MPI_INT, all[1], counts, places, MPI_INT, size - 1, MPI_COMM_WORLD);
    MPI_Bcast(all[1], LARGE * size, MPI_INT, size - 1, MPI_COMM_WORLD);
    same = !memcmp(all[0], all[1], sizeof(int) * (size_t)LARGE * (size_t)size);
    for (int i = 0; i < size; i++)
        same = same && all[0][i * LARGE + LARGE - 1] == i * 3 + LARGE - 1;
    MPI_Allreduce(mine, all[0], LARGE, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    PMPI_Allreduce(mine, all[1], LARGE, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    same = same && !memcmp(all[0], all[1], sizeof(int) * LARGE);
    free(all[0]);
    free(all[1]);
    free(mine);
    return same;
}

static uint64_t used(void)
{
    return ((const struct state *)(uintptr_t)(anchor->address + anchor->bytes - sizeof(struct state)))->used;
}

/* Whether the first barrier after all ranks have got a map over sites makes it that of the communicator. */
static bool adopts_at_once(uint64_t epoch)
{
    bool right = true;

    for (int i = 0; i < 20; i++) { /* those at one site, or of ranks each at its own, ask every 16 calls */
        epoch += epoch % 3 == 2 ? 3 : 1;
        while (epoch % 3 != 2)
            epoch++;
        hear(epoch, false);
        PMPI_Barrier(MPI_COMM_WORLD);
        for (int calls = 0; calls < (i ? 1 : 16); calls++)
            MPI_Barrier(MPI_COMM_WORLD);
        right = right && used() == epoch;
    }
    return right;
}

/* The same for calls that synchronise nobody: within so many of them. */
static bool adopts_within(uint64_t epoch, int most, int ints)
{
    while (epoch % 3 != 2)
        epoch++;
    hear(epoch, false);
    PMPI_Barrier(MPI_COMM_WORLD);
    for (int calls = 0; calls < most; calls++)
        MPI_Bcast(got[0], ints, MPI_INT, calls % size, MPI_COMM_WORLD);
    return used() == epoch;
}

static uint64_t by_levels(void)
{
    const struct anchor *found = dlsym(RTLD_DEFAULT, "wherry_mpi_anchor");

    return found ? ((const struct page *)(uintptr_t)found->address)->by_levels : 0;
}

static int compare(int cases, bool moves)
{
    MPI_Comm comms[COMMS] = {MPI_COMM_WORLD};
    uint64_t epoch = 0, heard = 0, from;
    int wrong = 0, all = 0, what;

    for (int i = 1; i < COMMS; i++) {
        from = (uint64_t)rank * 99 + (uint64_t)i;
        PMPI_Comm_split(MPI_COMM_WORLD, i == 3 ? (int)next(&from, 2) : 0, i == 2 ? -rank : (int)next(&from, 1000),
                        &comms[i]);
    }
    for (int i = 0; i < cases; i++) {
        uint64_t begun = common, mine;

        if (moves && !draw(3))
            epoch++;
        if (moves && heard < epoch && !next(&own_state, 4)) {
            heard += next(&own_state, 2) ? 1 : epoch - heard;
            if (!next(&own_state, 3))
                hear(heard, true); /* seen before it is whole */
            else
                hear(heard, false);
        }
        mine = common;
        if (!one_case(comms[draw(COMMS)], &what) && !wrong++)
            fprintf(stderr, "rank %d: wrong in case %d, kind %d, from %llu\n", rank, i, what,
                    (unsigned long long)begun);
        common = mine * 3 + 1; /* communicators of some ranks draw other numbers */
    }
    if (!moves && !large_case() && ++wrong)
        fprintf(stderr, "rank %d: large ones are wrong\n", rank);
    if (moves && !adopts_at_once(epoch + 1) && ++wrong)
        fprintf(stderr, "rank %d: a map was not adopted at once\n", rank);
    if (moves && !adopts_within(epoch + 1000, 64, 1) && ++wrong)
        fprintf(stderr, "rank %d: a map was not adopted in bcasts\n", rank);
    if (moves && !adopts_within(epoch + 2000, 40, HEAVY) && ++wrong)
        fprintf(stderr, "rank %d: a map was not adopted in large bcasts\n", rank);
    PMPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (!rank)
        printf("%d wrong, %s\n", all, by_levels() ? "by levels" : "plain");
    for (int i = 1; i < COMMS; i++)
        MPI_Comm_free(&comms[i]);
    return all != 0;
}

int main(int count, char **words)
{
    int error;

    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (count < 3 || size > MOST_RANKS)
        return 2;
    common = strtoull(words[1], NULL, 10);
    own_state = common + (uint64_t)rank * 1000003;
    anchor = dlsym(RTLD_DEFAULT, "wherry_mpi_map");
    make_types();
    make_contents();
    error = compare(atoi(words[2]), count > 3);
    MPI_Op_free(&product);
    MPI_Type_free(&matrix);
    MPI_Type_free(&gaps);
    MPI_Type_free(&backwards);
    MPI_Finalize();
    return error;
}
