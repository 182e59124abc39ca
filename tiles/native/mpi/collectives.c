/*
 * The collectives, of messages in a context of their own. The tag is the number of the collective: all ranks call them
 * in the same order, so a fast rank's next one is not taken for a slow rank's last.
 */
#include "point_to_point.h"

static int calls; /* collectives so far */

static int enter(MPI_Comm comm, int root)
{
    if (comm != MPI_COMM_WORLD)
        message_fail("there is no communicator", comm);
    if (root < 0 || root >= message_ranks)
        message_fail("there is no rank", root);
    return calls++ & 0x3fffffff;
}

static void send(const void *bytes, size_t size, int to, int tag)
{
    message_wait(message_send(bytes, size, to, tag, CONTEXT_COLLECTIVE), MPI_STATUS_IGNORE);
}

static void receive(void *bytes, size_t size, int from, int tag)
{
    message_wait(message_receive(bytes, size, from, tag, CONTEXT_COLLECTIVE), MPI_STATUS_IGNORE);
}

/* At least `size` bytes that live until the next call. */
static void *scratch(size_t size)
{
    static void *bytes;
    static size_t room;

    if (size > room) {
        room = (size + PAGE_SIZE - 1) / PAGE_SIZE * PAGE_SIZE;
        bytes = grow((int)(room / PAGE_SIZE));
        if (!bytes)
            message_fail("no memory for a reduction; bytes", (long)size);
    }
    return bytes;
}

/* Dissemination (Hensgen, Finkel, Manber 1988): after round k every rank has news of 2^(k+1) - 1 others. */
int MPI_Barrier(MPI_Comm comm)
{
    int tag = enter(comm, 0);

    for (int step = 1; step < message_ranks; step *= 2) {
        int to = (message_rank + step) % message_ranks, from = (message_rank - step + message_ranks) % message_ranks;
        int out = message_send(NULL, 0, to, tag, CONTEXT_COLLECTIVE);

        receive(NULL, 0, from, tag);
        message_wait(out, MPI_STATUS_IGNORE);
    }
    return MPI_SUCCESS;
}

/* Binomial tree over ranks counted from the root: the parent of a rank is it without its lowest bit. */
int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm)
{
    int tag = enter(comm, root), mine = (message_rank - root + message_ranks) % message_ranks, step = 1;
    size_t size = message_size(count, type);

    while (step < message_ranks && !(mine & step))
        step *= 2;
    if (mine)
        receive(buffer, size, (mine - step + root) % message_ranks, tag);
    for (step /= 2; step; step /= 2)
        if (mine + step < message_ranks)
            send(buffer, size, (mine + step + root) % message_ranks, tag);
    return MPI_SUCCESS;
}

#define COMBINE(type)                                                                                       \
    do {                                                                                                    \
        type *to = into;                                                                                    \
        const type *from = with;                                                                            \
        for (int i = 0; i < count; i++)                                                                     \
            switch (op) {                                                                                   \
            case MPI_SUM: to[i] = (type)(to[i] + from[i]); break;                                           \
            case MPI_PROD: to[i] = (type)(to[i] * from[i]); break;                                          \
            case MPI_MAX: to[i] = to[i] > from[i] ? to[i] : from[i]; break;                                 \
            default: to[i] = to[i] < from[i] ? to[i] : from[i];                                             \
            }                                                                                               \
    } while (0)

static void combine(void *into, const void *with, int count, MPI_Datatype type, MPI_Op op)
{
    if (op < MPI_SUM || op > MPI_MIN)
        message_fail("there is no operation", op);
    switch (type) {
    case MPI_INT:
        COMBINE(int);
        break;
    case MPI_LONG:
        COMBINE(long);
        break;
    case MPI_DOUBLE:
        COMBINE(double);
        break;
    default:
        message_fail("bytes and characters cannot be reduced; datatype", type);
    }
}

int MPI_Reduce(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm)
{
    int tag = enter(comm, root), mine = (message_rank - root + message_ranks) % message_ranks;
    size_t size = message_size(count, type);
    char *sum = scratch(2 * size + 16), *other = sum + size;

    memcpy(sum, in, size);
    for (int step = 1; step < message_ranks; step *= 2) {
        if (mine & step) {
            send(sum, size, (mine - step + root) % message_ranks, tag);
            break;
        }
        if (mine + step < message_ranks) {
            receive(other, size, (mine + step + root) % message_ranks, tag);
            combine(sum, other, count, type, op);
        }
    }
    if (message_rank == root)
        memcpy(out, sum, size);
    return MPI_SUCCESS;
}

int MPI_Allreduce(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    MPI_Reduce(in, out, count, type, op, 0, comm);
    return MPI_Bcast(out, count, type, 0, comm);
}

int MPI_Gather(const void *in, int in_count, MPI_Datatype in_type, void *out, int out_count, MPI_Datatype out_type,
               int root, MPI_Comm comm)
{
    int tag = enter(comm, root), pending[16];
    size_t size = message_size(in_count, in_type), room;

    if (message_rank != root) {
        send(in, size, root, tag);
        return MPI_SUCCESS;
    }
    room = message_size(out_count, out_type);
    memcpy((char *)out + (size_t)root * room, in, size);
    for (int rank = 0; rank < message_ranks; rank++)
        if (rank != root)
            pending[rank] = message_receive((char *)out + (size_t)rank * room, room, rank, tag, CONTEXT_COLLECTIVE);
    for (int rank = 0; rank < message_ranks; rank++)
        if (rank != root)
            message_wait(pending[rank], MPI_STATUS_IGNORE);
    return MPI_SUCCESS;
}

int MPI_Scatter(const void *in, int in_count, MPI_Datatype in_type, void *out, int out_count, MPI_Datatype out_type,
                int root, MPI_Comm comm)
{
    int tag = enter(comm, root), pending[16];
    size_t size, room = message_size(out_count, out_type);

    if (message_rank != root) {
        receive(out, room, root, tag);
        return MPI_SUCCESS;
    }
    size = message_size(in_count, in_type);
    memcpy(out, (const char *)in + (size_t)root * size, size);
    for (int rank = 0; rank < message_ranks; rank++)
        if (rank != root)
            pending[rank] = message_send((const char *)in + (size_t)rank * size, size, rank, tag, CONTEXT_COLLECTIVE);
    for (int rank = 0; rank < message_ranks; rank++)
        if (rank != root)
            message_wait(pending[rank], MPI_STATUS_IGNORE);
    return MPI_SUCCESS;
}

int MPI_Allgather(const void *in, int in_count, MPI_Datatype in_type, void *out, int out_count, MPI_Datatype out_type,
                  MPI_Comm comm)
{
    MPI_Gather(in, in_count, in_type, out, out_count, out_type, 0, comm);
    return MPI_Bcast(out, out_count * message_ranks, out_type, 0, comm);
}

int MPI_Alltoall(const void *in, int in_count, MPI_Datatype in_type, void *out, int out_count, MPI_Datatype out_type,
                 MPI_Comm comm)
{
    int tag = enter(comm, 0), pending[32];
    size_t size = message_size(in_count, in_type), room = message_size(out_count, out_type);

    for (int rank = 0; rank < message_ranks; rank++)
        pending[rank] = message_receive((char *)out + (size_t)rank * room, room, rank, tag, CONTEXT_COLLECTIVE);
    for (int rank = 0; rank < message_ranks; rank++)
        pending[16 + rank] = message_send((const char *)in + (size_t)rank * size, size, rank, tag, CONTEXT_COLLECTIVE);
    for (int rank = 0; rank < message_ranks; rank++) {
        message_wait(pending[rank], MPI_STATUS_IGNORE);
        message_wait(pending[16 + rank], MPI_STATUS_IGNORE);
    }
    return MPI_SUCCESS;
}
