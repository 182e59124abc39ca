/*
 * mpi_nonblocking SEED ROUNDS [moves]: rounds of non-blocking collectives drawn at random, several under way at once on
 * several communicators, whose results are those of the library's blocking ones; for
 * tests/integration/test_native_mpi_nonblocking.py.
 *
 * Each rank learns of their ends in a way and order of its own, beside messages of the program's: before or after a
 * message comes that another rank sends only when all of its own have ended, and a barrier of another communicator. A
 * communicator may be freed meanwhile. With `moves` maps of sites come all the time, as in mpi_exchanges.c.
 */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "mpi_moves.h"
#include "mpi_types.h"

enum { CAPACITY = 1 << 16, MOST_RANKS = 8, COMMS = 4, MOST = 5, WAYS = 11, TOKEN = 7, AROUND = 8 };
enum { BARRIER, BCAST, REDUCE, ALLREDUCE, SCAN, EXSCAN, REDUCE_SCATTER_BLOCK, REDUCE_SCATTER, GATHER, GATHERV, SCATTER,
       SCATTERV, ALLGATHER, ALLGATHERV, ALLTOALL, ALLTOALLV, KINDS };

/* The same data by another type: `factor` of them for an element. */
struct shape {
    MPI_Datatype type;
    int factor;
};

/* An operation: the values drawn for it, and its memory. */
struct one {
    int kind, root, count, own, ranks;
    bool in_place;
    struct shape out, in; /* of the sent and received data of this rank */
    int out_counts[MOST_RANKS], out_places[MOST_RANKS], in_counts[MOST_RANKS], in_places[MOST_RANKS];
    MPI_Datatype type;
    MPI_Op operator;
    MPI_Comm comm;
    int sent[CAPACITY], kept[CAPACITY], got[CAPACITY], right[CAPACITY];
};

#ifdef OPEN_MPI
static const bool can_free = false; /* 4.1 ends a program whose communicator is freed while its own ones are under way */
#else
static const bool can_free = true;
#endif

static uint64_t common, own_state; /* the same at all ranks; and of this rank alone */
static struct one ones[MOST];
static MPI_Request requests[MOST + 2]; /* and a message to the next rank, and from the one before */
static int wrong;

static void expect(bool right, const char *what)
{
    if (!right && !wrong++)
        fprintf(stderr, "rank %d: %s\n", rank, what);
}

static unsigned draw(unsigned limit)
{
    return next(&common, limit);
}

static uint64_t by_sites(void)
{
    const struct anchor *found = dlsym(RTLD_DEFAULT, "wherry_mpi_anchor");

    return found ? ((const struct page *)(uintptr_t)found->address)->by_levels : 0;
}

static struct shape draw_shape(unsigned kind, uint64_t *from)
{
    const struct shape shapes[2][3] = {
        {{MPI_INT, 4}, {matrix, 1}, {MPI_2INT, 2}}, {{MPI_INT, 3}, {gaps, 1}, {gaps, 1}}};

    return shapes[kind][next(from, 3)];
}

/* Draws as often whatever the communicator. */
static void draw_one(struct one *one, MPI_Comm comm)
{
    const MPI_Op operators[] = {MPI_SUM, MPI_MAX, MPI_BXOR, MPI_SUM, MPI_MAXLOC, product};
    const MPI_Datatype types[] = {MPI_INT, MPI_LONG, MPI_UNSIGNED, MPI_DOUBLE, MPI_2INT, matrix};
    unsigned most = draw(4) ? 9 : 1600, kind = draw(2), operation = draw(6), counts[MOST_RANKS];
    uint64_t mine;

    PMPI_Comm_rank(comm, &one->own);
    PMPI_Comm_size(comm, &one->ranks);
    one->comm = comm;
    one->kind = (int)draw(KINDS);
    one->root = (int)draw(1 << 20) % one->ranks;
    one->count = (int)draw(most);
    one->in_place = !draw(3);
    for (int i = 0; i < MOST_RANKS; i++)
        counts[i] = draw(4) ? draw(most) : 0;
    mine = one->kind == ALLGATHERV ? common : own_state; /* whose types some libraries want alike at all ranks */
    one->out = draw_shape(kind, &mine);
    one->in = draw_shape(kind, &mine);
    own_state++;
    for (int i = 0, place = 0; i < one->ranks; i++) {
        bool each = one->kind == ALLTOALLV;
        int out = (int)counts[each ? (one->own + i) % MOST_RANKS : i], in = (int)counts[i];

        one->out_counts[i] = (each ? out : in) * one->out.factor;
        one->in_counts[i] = (each ? out : in) * one->in.factor;
        one->out_places[i] = place * one->out.factor;
        one->in_places[i] = place * one->in.factor;
        place += (each ? out : in) + i % 2;
        if (one->kind == REDUCE_SCATTER)
            one->in_counts[i] = in;
    }
    one->type = types[operation];
    one->operator = operators[operation];
    for (int i = 0; i < CAPACITY; i++)
        one->sent[i] = one->got[i] = one->right[i] = (rank * 7919 + i * 31) % 13;
    if (one->type == MPI_DOUBLE && one->kind >= REDUCE && one->kind <= REDUCE_SCATTER)
        for (int i = 0; i < CAPACITY / 2; i++) /* sums without rounding */
            ((double *)one->sent)[i] = ((double *)one->got)[i] = ((double *)one->right)[i] = (rank * 31 + i) % 97;
    memcpy(one->kept, one->sent, sizeof one->sent);
}

#define EITHER(name, Name, ...)                                                                                        \
    (blocks ? PMPI_##Name(__VA_ARGS__, one->comm) : MPI_I##name(__VA_ARGS__, one->comm, request))

static int call(struct one *one, bool blocks, MPI_Request *request)
{
    int *into = blocks ? one->right : one->got, out = one->count * one->out.factor, in = one->count * one->in.factor;
    bool rooted = one->kind == REDUCE || one->kind == GATHER || one->kind == GATHERV, at_root = one->own == one->root;
    void *mine = one->in_place && (at_root || !rooted) ? MPI_IN_PLACE : one->sent;
    void *place = one->in_place && at_root ? MPI_IN_PLACE : into;

    switch (one->kind) {
    case BARRIER:
        return blocks ? PMPI_Barrier(one->comm) : MPI_Ibarrier(one->comm, request);
    case BCAST:
        return EITHER(bcast, Bcast, into, in, one->in.type, one->root);
    case REDUCE:
        return EITHER(reduce, Reduce, mine, into, one->count, one->type, one->operator, one->root);
    case ALLREDUCE:
        return EITHER(allreduce, Allreduce, mine, into, one->count, one->type, one->operator);
    case SCAN:
        return EITHER(scan, Scan, mine, into, one->count, one->type, one->operator);
    case EXSCAN:
        return EITHER(exscan, Exscan, mine, into, one->count, one->type, one->operator);
    case REDUCE_SCATTER_BLOCK:
        return EITHER(reduce_scatter_block, Reduce_scatter_block, mine, into, one->count, one->type, one->operator);
    case REDUCE_SCATTER:
        return EITHER(reduce_scatter, Reduce_scatter, mine, into, one->in_counts, one->type, one->operator);
    case GATHER:
        return EITHER(gather, Gather, mine, out, one->out.type, into, in, one->in.type, one->root);
    case GATHERV:
        return EITHER(gatherv, Gatherv, mine, one->out_counts[one->own], one->out.type, into, one->in_counts,
                       one->in_places, one->in.type, one->root);
    case SCATTER:
        return EITHER(scatter, Scatter, one->sent, out, one->out.type, place, in, one->in.type, one->root);
    case SCATTERV:
        return EITHER(scatterv, Scatterv, one->sent, one->out_counts, one->out_places, one->out.type, place,
                       one->in_counts[one->own], one->in.type, one->root);
    case ALLGATHER:
        return EITHER(allgather, Allgather, mine, out, one->out.type, into, in, one->in.type);
    case ALLGATHERV:
        return EITHER(allgatherv, Allgatherv, mine, one->out_counts[one->own], one->out.type, into, one->in_counts,
                       one->in_places, one->in.type);
    case ALLTOALL:
        return EITHER(alltoall, Alltoall, mine, out, one->out.type, into, in, one->in.type);
    default:
        return EITHER(alltoallv, Alltoallv, one->sent, one->out_counts, one->out_places, one->out.type, into,
                       one->in_counts, one->in_places, one->in.type);
    }
}

/* Ints of the result that are compared: results that MPI leaves open are not. */
static size_t compared(const struct one *one)
{
    int each = 0;

    if ((one->kind == REDUCE && one->own != one->root) || (one->kind == EXSCAN && !one->own))
        return 0;
    MPI_Type_size(one->type, &each);
    if (one->kind == REDUCE_SCATTER_BLOCK)
        return (size_t)one->count * (size_t)each / sizeof(int);
    return one->kind == REDUCE_SCATTER ? (size_t)one->in_counts[one->own] * (size_t)each / sizeof(int) : CAPACITY;
}

static void check(int i, int way)
{
    const struct one *one = &ones[i];
    const char *what = memcmp(one->got, one->right, compared(one) * sizeof(int)) ? "result"
                       : memcmp(one->sent, one->kept, sizeof one->sent)           ? "input"
                                                                                  : NULL;

    if (what && !wrong++)
        fprintf(stderr, "rank %d: the %s is wrong, kind %d, %d ranks, root %d, count %d, in place %d, way %d\n", rank,
                what, one->kind, one->ranks, one->root, one->count, one->in_place, way);
}

/* Learns of all ends, in one way. */
static void complete(int count, int way)
{
    MPI_Status statuses[MOST + 2];
    int order[MOST], done = 0, flag = 0, one, many, indices[MOST + 2];

    for (int i = 0; i < count; i++)
        order[i] = i;
    for (int i = count - 1; i > 0; i--) {
        int other = (int)next(&own_state, (unsigned)i + 1), mine = order[i];

        order[i] = order[other];
        order[other] = mine;
    }
    for (int i = 0; i < count && (way < 4 || way == 8); i++) {
        MPI_Request *request = &requests[order[i]];

        for (flag = 0; way == 1 && !flag;)
            MPI_Test(request, &flag, MPI_STATUS_IGNORE);
        for (flag = 0; way == 2 && !flag;)
            MPI_Request_get_status(*request, &flag, MPI_STATUS_IGNORE);
        if (way == 2)
            check(order[i], 20);
        if (way == 3)
            PMPI_Wait(request, statuses);
        for (flag = 0; way == 8 && !flag;)
            PMPI_Test(request, &flag, MPI_STATUS_IGNORE);
        MPI_Wait(request, MPI_STATUS_IGNORE);
        check(order[i], way);
    }
    while (way == 4 && (MPI_Waitany(count + 2, requests, &one, MPI_STATUS_IGNORE), one != MPI_UNDEFINED))
        if (one < count)
            check(one, way);
    while (way == 5 && done < count + 2) {
        MPI_Waitsome(count + 2, requests, &many, indices, statuses);
        done += many;
    }
    while (way == 6 && done < count + 2) {
        MPI_Testany(count + 2, requests, &one, &flag, MPI_STATUS_IGNORE);
        done += flag && one != MPI_UNDEFINED;
    }
    while (way == 7 && done < count + 2) {
        MPI_Testsome(count + 2, requests, &many, indices, MPI_STATUSES_IGNORE);
        done += many;
    }
    while (way == 9 && !flag)
        MPI_Testall(count + 2, requests, &flag, statuses);
    MPI_Waitall(count + 2, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < count; i++)
        check(i, way);
}

/* Other work of the program while they are under way, before this rank learns of their ends or after it. */
static void meanwhile(int what, int count, int way, MPI_Comm other)
{
    int from = what == 1 ? rank - 1 : rank + 1, to = what == 1 ? rank + 1 : rank - 1, token = 1, sum = 0;
    bool late = next(&own_state, 2);

    if (what == 1 || what == 2) { /* comes when those of the rank before have ended */
        if (from >= 0 && from < size)
            MPI_Recv(&token, 1, MPI_INT, from, TOKEN, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        complete(count, way);
        if (to >= 0 && to < size)
            MPI_Send(&token, 1, MPI_INT, to, TOKEN, MPI_COMM_WORLD);
        return;
    }
    if (late)
        complete(count, way);
    if (what == 3)
        MPI_Barrier(other);
    if (what == 4) {
        MPI_Allreduce(&token, &sum, 1, MPI_INT, MPI_SUM, other);
        expect(sum == size, "a sum among blocking ones is wrong");
    }
    if (!late)
        complete(count, way);
}

static void one_round(MPI_Comm *comms, int round)
{
    int count = 1 + (int)draw(MOST), what = (int)draw(6), in, out = rank + round;
    bool frees = !draw(4) && can_free;
    MPI_Comm freed;

    PMPI_Comm_split(MPI_COMM_WORLD, 0, (rank * 5 + round) % size, &freed);
    for (int i = 0; i < count; i++) {
        draw_one(&ones[i], frees && i == 0 ? freed : comms[draw(COMMS - 1)]);
        expect(!call(&ones[i], true, NULL), "the library cannot do it");
    }
    for (int i = 0; i < count; i++)
        expect(!call(&ones[i], false, &requests[i]), "one cannot begin");
    if (frees)
        MPI_Comm_free(&freed);
    MPI_Irecv(&in, 1, MPI_INT, (rank + size - 1) % size, AROUND, MPI_COMM_WORLD, &requests[count]);
    MPI_Isend(&out, 1, MPI_INT, (rank + 1) % size, AROUND, MPI_COMM_WORLD, &requests[count + 1]);
    meanwhile(what, count, (int)next(&own_state, WAYS), comms[COMMS - 1]);
    expect(in == (rank + size - 1) % size + round, "a message is wrong");
    if (!frees)
        MPI_Comm_free(&freed);
}

static int handled;

static void handle_error(MPI_Comm *comm, int *error, ...)
{
    (void)comm;
    (void)error;
    handled++;
}

/* Errors have the codes of the library's own, and the program's handler learns of them. */
static bool same_errors(void)
{
    int found[6], value = 1, other = 0;
    MPI_Errhandler ours;
    MPI_Request request;

    MPI_Comm_create_errhandler(handle_error, &ours);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, ours);
    found[0] = MPI_Ibcast(&value, 1, MPI_INT, size, MPI_COMM_WORLD, &request);
    found[1] = PMPI_Ibcast(&value, 1, MPI_INT, size, MPI_COMM_WORLD, &request);
    found[2] = MPI_Iallreduce(&value, &other, 1, MPI_INT, MPI_OP_NULL, MPI_COMM_WORLD, &request);
    found[3] = PMPI_Iallreduce(&value, &other, 1, MPI_INT, MPI_OP_NULL, MPI_COMM_WORLD, &request);
    found[4] = MPI_Iallreduce(&value, &other, -1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    found[5] = PMPI_Iallreduce(&value, &other, -1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    for (int i = 0; i < 6; i++)
        PMPI_Error_class(found[i], &found[i]);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Errhandler_free(&ours);
    return handled == 6 && found[0] && found[0] == found[1] && found[2] && found[2] == found[3] && found[4] &&
           found[4] == found[5];
}

/* How many of these are by sites. */
static uint64_t counted(void)
{
    uint64_t before = by_sites();
    double mine = rank, value = rank, sum = 0;
    MPI_Request all[3];

    MPI_Ibarrier(MPI_COMM_WORLD, &all[0]);
    MPI_Iallreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &all[1]);
    MPI_Ibcast(&value, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD, &all[2]);
    MPI_Waitall(3, all, MPI_STATUSES_IGNORE);
    expect(sum == size * (size - 1) / 2 && value == 0, "the first ones are wrong");
    return by_sites() - before;
}

static int rounds(int count, bool moves)
{
    MPI_Comm comms[COMMS] = {MPI_COMM_WORLD};
    uint64_t epoch = 0, heard = 0, at_first = counted();
    int all = 0;

    for (int i = 1; i < COMMS; i++)
        MPI_Comm_split(MPI_COMM_WORLD, i == 2 ? rank % 2 : 0, i == 1 ? -rank : rank, &comms[i]);
    for (int i = 0; i < count && !wrong; i++) {
        uint64_t begun = common;

        if (moves && !draw(3))
            epoch++;
        if (moves && heard < epoch && !next(&own_state, 4)) {
            heard += next(&own_state, 2) ? 1 : epoch - heard;
            hear(heard, false);
        }
        common = begun * 3 + 1;
        one_round(comms, i);
        common = begun * 5 + 1;
        PMPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        wrong = all;
    }
    expect(same_errors(), "errors differ");
    PMPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (!rank)
        printf("%d wrong, %llu of 3 by sites\n", all, (unsigned long long)at_first);
    for (int i = 1; i < COMMS; i++)
        MPI_Comm_free(&comms[i]);
    return all != 0;
}

int main(int count, char **words)
{
    int error;

    MPI_Init_thread(NULL, NULL, getenv("THREADS") ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &error);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (count < 3 || size > MOST_RANKS)
        return 2;
    common = strtoull(words[1], NULL, 10);
    own_state = common + (uint64_t)rank * 1000003;
    anchor = dlsym(RTLD_DEFAULT, "wherry_mpi_map");
    make_types();
    error = rounds(atoi(words[2]), count > 3);
    MPI_Op_free(&product);
    MPI_Type_free(&matrix);
    MPI_Type_free(&gaps);
    MPI_Type_free(&backwards);
    MPI_Finalize();
    return error;
}
