#include "ordered.h"

#include "blocks.h"
#include "bundles.h"
#include "exact.h"
#include "sites.h"

#include <limits.h>
#include <stdlib.h>

enum {
    WHOLE = 1024 * 1024, /* bytes of all ranks that go to each of them, which takes one crossing; of more each gets a part */
};

/* A reduction under way. */
struct work {
    struct levels *at;
    bool flat;           /* all goes by the program's communicator, whose handler learns of errors there */
    word type, operator;
    int64_t count, size; /* elements of each rank; bytes of an element */
    char *mine;          /* this rank's, one after the other */
    int *bytes, *places; /* by rank: of the part of the elements that it combines */
    int *others, *there; /* the same, of elements sent to it or received from it */
    char *pieces;        /* of all ranks, of the same part, one after the other */
};

static int64_t all_bytes(const struct work *work)
{
    return work->count * work->size;
}

bool ordered_wants(word type, word operator)
{
    static int asked; /* 1: no, 2: yes */

    if (!asked)
        asked = getenv("WHERRY_MPI_IN_ORDER") ? 2 : 1;
    return asked == 2 && !is_exact(type, operator) && !is_no_operator(operator);
}

/*
 * Elements of so many together, of which no part has more than `most` (0: they are cut by ranks): false when it is the library's, with nothing
 * done.
 */
static bool begin(struct work *work, int64_t count, int64_t most, word type, word operator, word handle)
{
    struct levels *at = sites_known(handle);
    int64_t size, all;

    if (!at || count <= 0)
        return false;
    size = bytes_of(1, type);
    most = most ? most : count / at->size + 1;
    if (size <= 0 || __builtin_mul_overflow(most * at->size, size, &all) || all > INT_MAX)
        return false;
    *work = (struct work){.at = at, .flat = !at->local, .type = type, .operator= operator, .count = count,
                          .size = size};
    return true;
}

/* Its memory, and this rank's elements. */
static int prepare(struct work *work, word sent)
{
    size_t ranks = (size_t)work->at->size;

    if (!work->flat)
        sites_count();
    work->bytes = malloc(sizeof(int) * 4 * ranks);
    work->mine = malloc((size_t)all_bytes(work));
    if (!work->bytes || !work->mine)
        return NO_MEMORY;
    work->places = work->bytes + ranks;
    work->others = work->places + ranks;
    work->there = work->others + ranks;
    return bytes_from(work->mine, sent, work->count, work->type, all_bytes(work), work->at->comm);
}

static bool end(struct work *work, int *result, int error)
{
    free(work->bytes);
    free(work->mine);
    free(work->pieces);
    if (!work->flat || error == NO_MEMORY) /* the library has reported its own errors to the handler */
        return sites_end(work->at, result, error);
    *result = error;
    return true;
}

static bool is_whole(const struct work *work)
{
    return all_bytes(work) <= WHOLE / work->at->size;
}

/* Each rank's part is all elements. */
static bool keep_whole(struct work *work)
{
    for (int rank = 0; rank < work->at->size; rank++) {
        work->bytes[rank] = (int)all_bytes(work);
        work->places[rank] = (int)(rank * all_bytes(work));
    }
    work->pieces = malloc((size_t)(all_bytes(work) * work->at->size));
    return work->pieces;
}

static void cut(struct work *work)
{
    int ranks = work->at->size;

    for (int rank = 0; rank < ranks; rank++) {
        int64_t first = work->count * rank / ranks, next = work->count * (rank + 1) / ranks;

        work->places[rank] = (int)(first * work->size);
        work->bytes[rank] = (int)((next - first) * work->size);
    }
}

/* Each rank has bytes for each other one. */
static int trade(const struct work *work, const char *from, const int *sent, const int *sent_places, char *into,
                 const int *got, const int *got_places)
{
    const struct levels *at = work->at;
    struct blocks out, in;

    if (work->flat || at->size > MOST_PARTNERS)
        return mpi.alltoallv((word)from, (word)sent, (word)sent_places, mpi.byte, (word)into, (word)got,
                             (word)got_places, mpi.byte, work->flat ? at->comm : at->across);
    out = blocks_of((word)from, 0, (word)sent, (word)sent_places, mpi.byte);
    in = blocks_of((word)into, 0, (word)got, (word)got_places, mpi.byte);
    return exchange_blocks(at, &out, &in);
}

/* The root gets the part of each rank, of which this one's is at `from`. */
static int collect(const struct work *work, const char *from, char *into, int root)
{
    const struct levels *at = work->at;
    int own = work->bytes[at->rank];
    struct blocks blocks;

    if (work->flat)
        return mpi.gatherv((word)from, (word)own, mpi.byte, (word)into, (word)work->bytes, (word)work->places, mpi.byte,
                           (word)root, at->comm);
    blocks = blocks_of((word)into, 0, (word)work->bytes, (word)work->places, mpi.byte);
    return gather_blocks(at, (word)from, own, mpi.byte, &blocks, root);
}

static int gather(const struct work *work, const char *from, char *into)
{
    int own = work->bytes[work->at->rank];

    if (work->flat)
        return mpi.allgatherv((word)from, (word)own, mpi.byte, (word)into, (word)work->bytes, (word)work->places,
                              mpi.byte, work->at->comm);
    return bundles_gather_bytes(work->at, from, into, work->bytes, work->places);
}

static char *piece_of(const struct work *work, int rank)
{
    return work->pieces + (int64_t)rank * work->bytes[work->at->rank];
}

/* The same of elements that do not lie in memory as they are sent. */
static int combine_packed(const struct work *work, int last, int64_t count)
{
    int64_t bytes = count * work->size;
    struct room rooms[2] = {{0}};
    bool enough = make_room(&rooms[0], count, work->type) && make_room(&rooms[1], count, work->type);
    int error = enough ? bytes_into(rooms[0].at, count, work->type, work->pieces, bytes, work->at->comm) : NO_MEMORY;

    for (int rank = 1; rank <= last && !error; rank++) {
        word before = rooms[(rank - 1) % 2].at, next = rooms[rank % 2].at;

        error = bytes_into(next, count, work->type, piece_of(work, rank), bytes, work->at->comm);
        if (!error)
            error = mpi.reduce_local(before, next, (word)count, work->type, work->operator);
        if (!error)
            error = bytes_from(piece_of(work, rank), next, count, work->type, bytes, work->at->comm);
    }
    free(rooms[0].base);
    free(rooms[1].base);
    return error;
}

/* Makes of each rank's piece, up to the last one, what all ranks up to it have together. */
static int combine(const struct work *work, int last)
{
    int64_t count = work->bytes[work->at->rank] / work->size;
    int error = 0;

    if (!count || last < 1)
        return 0;
    if (!is_plain(work->type, work->size))
        return combine_packed(work, last, count);
    for (int rank = 1; rank <= last && !error; rank++)
        error = mpi.reduce_local((word)piece_of(work, rank - 1), (word)piece_of(work, rank), (word)count, work->type,
                                 work->operator);
    return error;
}

/* Gets all ranks' pieces of this one's part, and combines them. */
static int combine_part(struct work *work)
{
    int ranks = work->at->size, own = work->bytes[work->at->rank], error;

    work->pieces = malloc((size_t)own * (size_t)ranks + 1);
    if (!work->pieces)
        return NO_MEMORY;
    for (int rank = 0; rank < ranks; rank++) {
        work->others[rank] = own;
        work->there[rank] = rank * own;
    }
    error = trade(work, work->mine, work->bytes, work->places, work->pieces, work->others, work->there);
    return error ? error : combine(work, ranks - 1);
}

static int put(const struct work *work, word got, int64_t count, const char *from)
{
    return bytes_into(got, count, work->type, from, count * work->size, work->at->comm);
}

bool ordered_allreduce(int *result, word sent, word got, int64_t count, word type, word operator, word handle)
{
    struct work work;
    const char *all;
    int error, last;

    if (!begin(&work, count, 0, type, operator, handle))
        return false;
    last = work.at->size - 1;
    error = prepare(&work, sent == mpi.in_place ? got : sent);
    if (!error && is_whole(&work)) {
        error = keep_whole(&work) ? gather(&work, work.mine, work.pieces) : NO_MEMORY;
        error = error ? error : combine(&work, last);
        all = error ? NULL : piece_of(&work, last);
    } else {
        if (!error)
            cut(&work);
        error = error ? error : combine_part(&work);
        error = error ? error : gather(&work, piece_of(&work, last), work.mine);
        all = work.mine;
    }
    return end(&work, result, error ? error : put(&work, got, count, all));
}

bool ordered_reduce(int *result, word sent, word got, int64_t count, word type, word operator, int root, word handle)
{
    struct work work;
    bool is_root;
    int error, last;

    if (!begin(&work, count, 0, type, operator, handle) || root < 0 || root >= work.at->size)
        return false;
    last = work.at->size - 1;
    is_root = work.at->rank == root;
    levels_weigh(work.at, all_bytes(&work));
    error = prepare(&work, sent == mpi.in_place ? got : sent);
    if (!error && is_whole(&work)) {
        error = keep_whole(&work) ? collect(&work, work.mine, work.pieces, root) : NO_MEMORY;
        if (!error && is_root)
            error = combine(&work, last);
        if (!error && is_root)
            error = put(&work, got, count, piece_of(&work, last));
        return end(&work, result, error);
    }
    if (!error)
        cut(&work);
    error = error ? error : combine_part(&work);
    error = error ? error : collect(&work, piece_of(&work, last), work.mine, root);
    if (!error && is_root)
        error = put(&work, got, count, work.mine);
    return end(&work, result, error);
}

bool ordered_reduce_scatter(int *result, word sent, word got, const int *counts, int count, word type, word operator,
                            word handle)
{
    struct communicator *comm = communicator_of(object_of(handle));
    int64_t all = 0, most = 0;
    struct work work;
    int error, place = 0;

    for (int rank = 0; comm && !comm->inter && rank < comm->size; rank++) {
        int many = counts ? counts[rank] : count;

        if (many < 0)
            return false;
        all += many;
        most = many > most ? many : most;
    }
    if (!begin(&work, all, most, type, operator, handle))
        return false;
    levels_weigh(work.at, most * work.size);
    error = prepare(&work, sent == mpi.in_place ? got : sent);
    for (int rank = 0; rank < work.at->size && !error; rank++) {
        work.bytes[rank] = (int)((counts ? counts[rank] : count) * work.size);
        work.places[rank] = place;
        place += work.bytes[rank];
    }
    error = error ? error : combine_part(&work);
    if (!error)
        error = put(&work, got, work.bytes[work.at->rank] / work.size, piece_of(&work, work.at->size - 1));
    return end(&work, result, error);
}

/* Hands out what each rank is to have of this one's part, so each gets all of its own: into `mine`. */
static int hand_out(const struct work *work, bool exclusive)
{
    for (int rank = 0; rank < work->at->size; rank++)
        work->there[rank] = (exclusive && rank ? rank - 1 : rank) * work->bytes[work->at->rank];
    return trade(work, work->pieces, work->others, work->there, work->mine, work->bytes, work->places);
}

bool ordered_scan(int *result, word sent, word got, int64_t count, word type, word operator, word handle,
                  bool exclusive)
{
    struct work work;
    const char *all;
    int error, last;

    if (!begin(&work, count, 0, type, operator, handle))
        return false;
    last = work.at->rank - exclusive;
    error = prepare(&work, sent == mpi.in_place ? got : sent);
    if (!error && is_whole(&work)) {
        error = keep_whole(&work) ? gather(&work, work.mine, work.pieces) : NO_MEMORY;
        error = error ? error : combine(&work, last);
        all = error || last < 0 ? NULL : piece_of(&work, last);
    } else {
        if (!error)
            cut(&work);
        error = error ? error : combine_part(&work);
        error = error ? error : hand_out(&work, exclusive);
        all = work.mine;
    }
    if (!error && last >= 0)
        error = put(&work, got, count, all);
    return end(&work, result, error);
}
