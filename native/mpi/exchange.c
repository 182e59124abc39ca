#include "exchange.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE = 32 * 1024,       /* bytes that are sent at once: Open MPI asks before it sends more than 64 KiB */
    SHORT_PIECE = 8 * 1024,  /* the same for MPICH, over UCX: 12 KiB take one latency, 32 KiB take three */
    AT_FIRST = 16,
};

/* The bytes of elements that are packed: to be unpacked when all messages have come, if there is an `into`. */
struct parcel {
    char *packed;
    int64_t bytes, count;
    word into, type, comm;
};

ptrdiff_t extent_of(word type)
{
    ptrdiff_t lower, extent = 0;

    mpi.type_get_extent(type, (word)&lower, (word)&extent);
    return extent;
}

bool make_room(struct room *room, int64_t count, word type)
{
    ptrdiff_t lower = 0, extent = 0, low = 0, length = 0, high, last;

    mpi.type_get_extent(type, (word)&lower, (word)&extent);
    mpi.type_get_true_extent(type, (word)&low, (word)&length);
    high = low + length > lower + extent ? low + length : lower + extent; /* an operator may use gaps at the ends */
    low = low < lower ? low : lower;
    last = (count ? count - 1 : 0) * extent;
    low += last < 0 ? last : 0;
    high += last > 0 ? last : 0;
    room->base = malloc(high > low ? (size_t)(high - low) : 1);
    room->at = (word)(room->base - low);
    return room->base;
}

int copy_elements(word from, word to, int64_t count, word type, int rank, word comm)
{
    return mpi.sendrecv(from, (word)count, type, (word)rank, TAG, to, (word)count, type, (word)rank, TAG, comm,
                        mpi.statuses_ignore);
}

bool is_plain(word type, int64_t size)
{
    int integers, addresses, types, combiner = -1;

    if (type == mpi.byte)
        return true;
    mpi.type_get_envelope(type, (word)&integers, (word)&addresses, (word)&types, (word)&combiner);
    return combiner == mpi.combiner_named && extent_of(type) == size;
}

int bytes_from(char *to, word from, int64_t count, word type, int64_t bytes, word comm)
{
    char *packed;
    int error, size = 0, end = 0;

    if (!bytes)
        return 0;
    if (is_plain(type, bytes / count)) {
        memcpy(to, (const void *)from, (size_t)bytes);
        return 0;
    }
    mpi.pack_size((word)count, type, comm, (word)&size); /* a library may want more than it writes */
    if (size <= bytes)
        return mpi.pack(from, (word)count, type, (word)to, (word)bytes, (word)&end, comm);
    packed = malloc((size_t)size);
    error = packed ? mpi.pack(from, (word)count, type, (word)packed, (word)size, (word)&end, comm) : NO_MEMORY;
    if (!error)
        memcpy(to, packed, (size_t)bytes);
    free(packed);
    return error;
}

int bytes_into(word to, int64_t count, word type, const char *from, int64_t bytes, word comm)
{
    int end = 0;

    if (!bytes)
        return 0;
    if (!is_plain(type, bytes / count))
        return mpi.unpack((word)from, (word)bytes, (word)&end, to, (word)count, type, comm);
    memcpy((void *)to, from, (size_t)bytes);
    return 0;
}

static size_t handle_bytes(void)
{
    return mpi.short_handles ? sizeof(int) : sizeof(word);
}

int post_message(struct flight *flight, call7 function, word at, int64_t count, word type, int peer, word comm)
{
    int error;

    if (flight->count == flight->room) {
        int room = flight->room ? 2 * flight->room : AT_FIRST;
        char *more = realloc(flight->requests, (size_t)room * handle_bytes());

        if (!more)
            return NO_MEMORY;
        flight->requests = more;
        flight->room = room;
    }
    error = function(at, (word)count, type, (word)peer, TAG, comm,
                     (word)(flight->requests + (size_t)flight->count * handle_bytes()));
    flight->count += !error;
    return error;
}

int64_t piece_bytes(void)
{
    return mpi.short_handles ? SHORT_PIECE : PIECE;
}

/* Sends or receives elements of so many bytes each, piece by piece. */
static int transfer(struct flight *flight, call7 function, word at, int64_t count, word type, int64_t size, int peer,
                    word comm)
{
    int64_t piece = size && size < piece_bytes() ? piece_bytes() / size : 1, many;
    ptrdiff_t extent = extent_of(type);
    int error = 0;

    if (count * size >= LARGE)
        piece = count;
    for (int64_t done = 0; done < count && !error; done += many) {
        many = count - done < piece ? count - done : piece;
        error = post_message(flight, function, at + (word)(done * extent), many, type, peer, comm);
    }
    return error;
}

int send_elements(struct flight *flight, word at, int64_t count, word type, int64_t size, int peer, word comm)
{
    return transfer(flight, mpi.isend, at, count, type, size, peer, comm);
}

int receive_elements(struct flight *flight, word at, int64_t count, word type, int64_t size, int peer, word comm)
{
    return transfer(flight, mpi.irecv, at, count, type, size, peer, comm);
}

static bool goes_whole(int64_t bytes)
{
    return bytes <= piece_bytes() || bytes >= LARGE;
}

/* Memory for the bytes of elements, until the flight ends; NULL when there is none. */
static char *parcel(struct flight *flight, struct parcel parcel)
{
    if (flight->packed == flight->parcels_room) {
        int room = flight->parcels_room ? 2 * flight->parcels_room : AT_FIRST;
        struct parcel *more = realloc(flight->parcels, (size_t)room * sizeof *more);

        if (!more)
            return NULL;
        flight->parcels = more;
        flight->parcels_room = room;
    }
    parcel.packed = malloc((size_t)parcel.bytes);
    if (parcel.packed)
        flight->parcels[flight->packed++] = parcel;
    return parcel.packed;
}

int send_bytes(struct flight *flight, word at, int64_t count, word type, int64_t bytes, int peer, word comm)
{
    char *packed;
    int error;

    if (!bytes)
        return 0;
    if (goes_whole(bytes))
        return post_message(flight, mpi.isend, at, count, type, peer, comm);
    if (is_plain(type, bytes / count))
        return transfer(flight, mpi.isend, at, bytes, mpi.byte, 1, peer, comm);
    packed = parcel(flight, (struct parcel){.bytes = bytes});
    error = packed ? bytes_from(packed, at, count, type, bytes, comm) : NO_MEMORY;
    return error ? error : transfer(flight, mpi.isend, (word)packed, bytes, mpi.byte, 1, peer, comm);
}

int receive_bytes(struct flight *flight, word at, int64_t count, word type, int64_t bytes, int peer, word comm)
{
    char *packed;

    if (!bytes)
        return 0;
    if (goes_whole(bytes))
        return post_message(flight, mpi.irecv, at, count, type, peer, comm);
    if (is_plain(type, bytes / count))
        return transfer(flight, mpi.irecv, at, bytes, mpi.byte, 1, peer, comm);
    packed = parcel(flight, (struct parcel){.bytes = bytes, .count = count, .into = at, .type = type, .comm = comm});
    return packed ? transfer(flight, mpi.irecv, (word)packed, bytes, mpi.byte, 1, peer, comm) : NO_MEMORY;
}

int end_flight(struct flight *flight, int error)
{
    int failed = flight->count ? mpi.waitall((word)flight->count, (word)flight->requests, mpi.statuses_ignore) : 0;

    error = error ? error : failed;
    for (int i = 0; i < flight->packed; i++) {
        struct parcel *one = &flight->parcels[i];

        if (!error && one->comm)
            error = bytes_into(one->into, one->count, one->type, one->packed, one->bytes, one->comm);
        free(one->packed);
    }
    free(flight->parcels);
    free(flight->requests);
    *flight = (struct flight){0};
    return error;
}
