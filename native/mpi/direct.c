#include "direct.h"

#include "blocks.h"
#include "exact.h"
#include "ordered.h"
#include "pending.h"
#include "sites.h"

enum {
    MOST_RANKS = 128,          /* of more, each with a message for each, the library makes fewer messages */
    MOST_BYTES = 1024 * 1024,  /* of all messages: over the link a quarter of it each way, if half of the ranks are there */
};

static char nothing[2]; /* sent and received by a rank; libraries take equal addresses for MPI_IN_PLACE */

/* The communicator, if it is one for us; NULL: the library does it. */
static const struct communicator *begin(word handle, word request)
{
    const struct communicator *comm = mpi.direct && request ? sites_parted(handle) : NULL;

    return comm && comm->size <= MOST_RANKS ? comm : NULL;
}

static int rank_of(const struct communicator *comm)
{
    int rank = 0;

    mpi.comm_rank(comm->object, (word)&rank);
    return rank;
}

/* Whether so many messages of so many bytes are none that a library asks about before it sends them, or a burden. */
static bool fits(int64_t bytes, int64_t messages)
{
    return bytes > 0 && bytes <= piece_bytes() && bytes * messages <= MOST_BYTES;
}

/* The same of messages that there are whatever the way. */
static bool fits_each(int64_t bytes)
{
    return fits(bytes, 1);
}

static bool start(int *result, const struct communicator *comm, struct pending *one, word sent, word sent_type, word got,
                  word got_type, word request)
{
    if (!one) {
        *result = NO_MEMORY;
        mpi.call_errhandler(comm->object, NO_MEMORY);
        return true;
    }
    if (sent == got) { /* the program's MPI_BOTTOM, or in place */
        sent += (word)extent_of(sent_type);
        for (int rank = 0; rank < comm->size; rank++)
            one->sent_places[rank]--;
    }
    sites_count();
    if (comm->levels)
        comm->levels->turns++; /* nobody need have waited for another one */
    *result = mpi.ialltoallv(sent, (word)one->sent_counts, (word)one->sent_places, sent_type, got,
                             (word)one->got_counts, (word)one->got_places, got_type, comm->object, request);
    if (*result)
        pending_free(one);
    else
        pending_keep(one, handle_at(request));
    return true;
}

bool direct_ibarrier(int *result, word handle, word request)
{
    const struct communicator *comm = begin(handle, request);
    struct pending *one;

    if (!comm)
        return false;
    one = pending_new(comm->size, comm->size);
    for (int rank = 0; one && rank < comm->size; rank++) {
        one->sent_counts[rank] = one->got_counts[rank] = 1;
        one->got_places[rank] = rank;
    }
    return start(result, comm, one, (word)nothing, mpi.byte, one ? (word)one->pieces : 0, mpi.byte, request);
}

bool direct_ibcast(int *result, word buffer, int count, word type, int root, word handle, word request)
{
    const struct communicator *comm = begin(handle, request);
    struct pending *one;

    if (!comm || root < 0 || root >= comm->size || !fits(bytes_of(count, type), 2 * comm->size))
        return false;
    one = pending_new(comm->size, 0);
    if (rank_of(comm) != root) {
        if (one)
            one->got_counts[root] = count;
        return start(result, comm, one, (word)nothing, mpi.byte, buffer, type, request);
    }
    for (int rank = 0; one && rank < comm->size; rank++)
        one->sent_counts[rank] = rank == root ? 0 : count;
    return start(result, comm, one, buffer, type, (word)&nothing[1], mpi.byte, request);
}

/* The arguments of a reduction. */
struct reduction {
    const struct communicator *comm;
    int64_t count, size; /* of this rank's part; bytes of an element */
    word type, operator, sent, got;
};

/* A reduction, if it is one for us: the program may free other types and operators before it has ended. */
static bool begin_reduction(struct reduction *of, word sent, word got, word type, word operator, word handle,
                            word request)
{
    int64_t size = bytes_of(1, type);

    *of = (struct reduction){.comm = begin(handle, request), .size = size, .type = type, .operator = operator,
                             .sent = sent == mpi.in_place ? got : sent, .got = got};
    return of->comm && is_arithmetic(type, operator) && !ordered_wants(type, operator) && is_plain(type, size);
}

/* With memory for the parts of so many ranks; none: this one combines nothing. */
static struct pending *pieces_of(const struct reduction *of, int ranks)
{
    int64_t bytes = of->count * of->size;
    struct pending *one = pending_new(of->comm->size, bytes * ranks);

    if (!one)
        return NULL;
    one->last = bytes ? ranks - 1 : -1;
    one->count = of->count;
    one->bytes = bytes;
    one->type = of->type;
    one->operator= of->operator;
    one->got = of->got;
    for (int rank = 0; rank < ranks; rank++) {
        one->got_counts[rank] = (int)of->count;
        one->got_places[rank] = (int)of->count * rank;
    }
    return one;
}

static bool start_reduction(int *result, const struct reduction *of, struct pending *one, word request)
{
    return start(result, of->comm, one, of->sent, of->type, one && one->pieces ? (word)one->pieces : (word)&nothing[1],
                 of->type, request);
}

bool direct_iallreduce(int *result, word sent, word got, int count, word type, word operator, word handle, word request)
{
    struct reduction of;
    struct pending *one;

    if (!begin_reduction(&of, sent, got, type, operator, handle, request) ||
        !fits(count * of.size, (int64_t)of.comm->size * of.comm->size))
        return false;
    of.count = count;
    one = pieces_of(&of, of.comm->size);
    for (int rank = 0; one && rank < of.comm->size; rank++)
        one->sent_counts[rank] = count;
    return start_reduction(result, &of, one, request);
}

bool direct_ireduce(int *result, word sent, word got, int count, word type, word operator, int root, word handle,
                    word request)
{
    struct reduction of;
    struct pending *one;
    bool is_root;

    if (!begin_reduction(&of, sent, got, type, operator, handle, request) || root < 0 || root >= of.comm->size ||
        !fits(count * of.size, 2 * of.comm->size))
        return false;
    is_root = rank_of(of.comm) == root;
    if (sent == mpi.in_place && !is_root) /* an error that the library is to report */
        return false;
    of.count = count;
    one = pieces_of(&of, is_root ? of.comm->size : 0);
    if (one)
        one->sent_counts[root] = count;
    return start_reduction(result, &of, one, request);
}

/* Each rank sends its part to all later ones, and gets the parts of all earlier ones. */
static bool scan(int *result, word sent, word got, int count, word type, word operator, word handle, word request,
                 bool exclusive)
{
    struct reduction of;
    struct pending *one;
    int own;

    if (!begin_reduction(&of, sent, got, type, operator, handle, request) ||
        !fits(count * of.size, (int64_t)of.comm->size * of.comm->size))
        return false;
    own = rank_of(of.comm);
    of.count = count;
    one = pieces_of(&of, exclusive ? own : own + 1);
    for (int rank = exclusive ? own + 1 : own; one && rank < of.comm->size; rank++)
        one->sent_counts[rank] = count;
    return start_reduction(result, &of, one, request);
}

bool direct_iscan(int *result, word sent, word got, int count, word type, word operator, word handle, word request)
{
    return scan(result, sent, got, count, type, operator, handle, request, false);
}

bool direct_iexscan(int *result, word sent, word got, int count, word type, word operator, word handle, word request)
{
    return scan(result, sent, got, count, type, operator, handle, request, true);
}

/* `counts` of all ranks, or `count` of each: each rank gets its own part of the combined elements of all. */
static bool shared_reduction(int *result, word sent, word got, const int *counts, int count, word type, word operator,
                             word handle, word request)
{
    int64_t all = 0, most = 0;
    struct reduction of;
    struct pending *one;
    int own, place = 0;

    if (!begin_reduction(&of, sent, got, type, operator, handle, request))
        return false;
    for (int rank = 0; rank < of.comm->size; rank++) {
        int many = counts ? counts[rank] : count;

        if (many < 0)
            return false;
        all += many;
        most = many > most ? many : most;
    }
    if (!fits_each(most * of.size) || all * of.size * of.comm->size > MOST_BYTES)
        return false;
    own = rank_of(of.comm);
    of.count = counts ? counts[own] : count;
    one = pieces_of(&of, of.count ? of.comm->size : 0);
    for (int rank = 0; one && rank < of.comm->size; rank++) {
        one->sent_counts[rank] = counts ? counts[rank] : count;
        one->sent_places[rank] = place;
        place += one->sent_counts[rank];
    }
    return start_reduction(result, &of, one, request);
}

bool direct_ireduce_scatter_block(int *result, word sent, word got, int count, word type, word operator, word handle,
                                  word request)
{
    return shared_reduction(result, sent, got, NULL, count, type, operator, handle, request);
}

bool direct_ireduce_scatter(int *result, word sent, word got, word counts, word type, word operator, word handle,
                            word request)
{
    return counts && shared_reduction(result, sent, got, (const int *)counts, 0, type, operator, handle, request);
}

bool direct_igather(int *result, word sent, int count, word type, word got, int got_count, word got_type, int root,
                    word handle, word request)
{
    const struct communicator *comm = begin(handle, request);
    bool is_root = comm && rank_of(comm) == root, in_place = sent == mpi.in_place;
    struct pending *one;

    if (!comm || root < 0 || root >= comm->size || (in_place && !is_root) ||
        !fits_each(is_root ? bytes_of(got_count, got_type) : bytes_of(count, type)))
        return false;
    one = pending_new(comm->size, 0);
    if (one && !in_place)
        one->sent_counts[root] = count;
    for (int rank = 0; one && is_root && rank < comm->size; rank++) {
        one->got_counts[rank] = rank == root && in_place ? 0 : got_count;
        one->got_places[rank] = got_count * rank;
    }
    return start(result, comm, one, in_place ? (word)nothing : sent, in_place ? mpi.byte : type,
                 is_root ? got : (word)&nothing[1], is_root ? got_type : mpi.byte, request);
}

bool direct_iscatter(int *result, word sent, int sent_count, word sent_type, word got, int count, word type, int root,
                     word handle, word request)
{
    const struct communicator *comm = begin(handle, request);
    bool is_root = comm && rank_of(comm) == root, in_place = got == mpi.in_place;
    struct pending *one;

    if (!comm || root < 0 || root >= comm->size || (in_place && !is_root) ||
        !fits_each(is_root ? bytes_of(sent_count, sent_type) : bytes_of(count, type)))
        return false;
    one = pending_new(comm->size, 0);
    if (one && !in_place)
        one->got_counts[root] = count;
    for (int rank = 0; one && is_root && rank < comm->size; rank++) {
        one->sent_counts[rank] = rank == root && in_place ? 0 : sent_count;
        one->sent_places[rank] = sent_count * rank;
    }
    return start(result, comm, one, is_root ? sent : (word)nothing, is_root ? sent_type : mpi.byte,
                 in_place ? (word)&nothing[1] : got, in_place ? mpi.byte : type, request);
}

static bool all_gather(int *result, word sent, int count, word type, const struct blocks *blocks,
                       const struct communicator *comm, word request)
{
    int own = rank_of(comm);
    bool in_place = sent == mpi.in_place;
    int64_t all = 0, most = 0;
    struct pending *one;

    for (int rank = 0; rank < comm->size; rank++) {
        int64_t bytes = length_of(blocks, rank);

        if (bytes < 0 || bytes > piece_bytes())
            return false;
        all += bytes;
        most = bytes > most ? bytes : most;
    }
    if (!fits_each(most) || all * comm->size > MOST_BYTES)
        return false;
    one = pending_new(comm->size, 0);
    for (int rank = 0; one && rank < comm->size; rank++) {
        bool here = in_place && rank == own;

        one->sent_counts[rank] = here ? 0 : in_place ? count_of(blocks, own) : count;
        one->got_counts[rank] = here ? 0 : count_of(blocks, rank);
        one->got_places[rank] = blocks->counts ? blocks->displacements[rank] : blocks->count * rank;
    }
    return start(result, comm, one, in_place ? address_of(blocks, own) : sent, in_place ? blocks->type : type,
                 blocks->buffer, blocks->type, request);
}

bool direct_iallgather(int *result, word sent, int count, word type, word got, int got_count, word got_type,
                       word handle, word request)
{
    const struct communicator *comm = begin(handle, request);
    struct blocks blocks;

    if (!comm || got_count <= 0)
        return false;
    blocks = blocks_of(got, got_count, 0, 0, got_type);
    return all_gather(result, sent, count, type, &blocks, comm, request);
}

bool direct_iallgatherv(int *result, word sent, int count, word type, word got, word counts, word displacements,
                        word got_type, word handle, word request)
{
    const struct communicator *comm = begin(handle, request);
    struct blocks blocks;

    if (!comm || !counts || !displacements)
        return false;
    blocks = blocks_of(got, 0, counts, displacements, got_type);
    return all_gather(result, sent, count, type, &blocks, comm, request);
}

bool direct_ialltoall(int *result, word sent, int count, word type, word got, int got_count, word got_type, word handle,
                      word request)
{
    const struct communicator *comm = begin(handle, request);
    struct pending *one;

    if (!comm || sent == mpi.in_place || !fits_each(bytes_of(got_count, got_type)))
        return false;
    one = pending_new(comm->size, 0);
    for (int rank = 0; one && rank < comm->size; rank++) {
        one->sent_counts[rank] = count;
        one->sent_places[rank] = count * rank;
        one->got_counts[rank] = got_count;
        one->got_places[rank] = got_count * rank;
    }
    return start(result, comm, one, sent, type, got, got_type, request);
}
