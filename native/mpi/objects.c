#include "objects.h"

#include "fortran.h"
#include "page.h"

#include <stdlib.h>
#include <string.h>

enum {
    AT_FIRST = 64,   /* places for communicators, twice as many whenever half are taken; a power of two */
    REQUESTS = 4096, /* places for persistent requests, the same */
    MPICH_KIND = 0xff000000, /* of an MPICH handle; a basic type has its size in the second byte */
    MPICH_BASIC = 0x4c000000,
    LISTS = 512 * 1024, /* bytes of all lists of ranks, unless collectives go by sites, which need each */
};

static struct communicator **known, *latest;
static unsigned known_places, known_count, places = 1;
static struct request requests[REQUESTS];
static unsigned requests_count;
static size_t lists; /* bytes */

/* The type that a thread asked for last, and how many were freed by then. */
static _Thread_local struct {
    word type;
    int64_t size;
    uint64_t freed;
} last __attribute__((tls_model("initial-exec")));
static uint64_t freed = 1;

int64_t bytes_of(int64_t count, word type)
{
    int64_t size = 0, bytes;

    if (count <= 0)
        return 0;
    if (mpi.short_handles && (type & MPICH_KIND) == MPICH_BASIC)
        return count * (int64_t)(type >> 8 & 0xff);
    if (last.type != type || last.freed != freed) {
        if (mpi.type_size(is_from_fortran(type) ? mpi.type_f2c(fortran_number(type)) : type, (word)&size) || size < 0)
            size = INT64_MAX;
        last.type = type;
        last.size = size;
        last.freed = freed;
    }
    return __builtin_mul_overflow(count, last.size, &bytes) ? INT64_MAX : bytes;
}

void forget_sizes(void)
{
    freed++;
}

static unsigned place_of(word handle, unsigned places_there)
{
    return (unsigned)((uint64_t)handle * 0x9e3779b97f4a7c15U >> 40) & (places_there - 1);
}

/*
 * Notes by rank of the communicator's group the rank in MPI_COMM_WORLD; nothing where all are the same. False: there is
 * no memory.
 */
static bool note_world_ranks(struct communicator *of, word comm, bool inter, int size)
{
    word group = 0, world = 0;
    size_t bytes = (size_t)size * sizeof(int);
    int *ranks = malloc(2 * bytes), *found = ranks + size, failed, same = 0;

    if (!ranks)
        return false;
    for (int i = 0; i < size; i++)
        ranks[i] = i;
    failed = (inter ? mpi.comm_remote_group : mpi.comm_group)(comm, (word)&group);
    failed = failed || mpi.comm_group(mpi.world, (word)&world);
    failed = failed || mpi.group_translate_ranks(handle(group), (word)size, (word)ranks, handle(world), (word)found);
    if (world)
        mpi.group_free((word)&world);
    if (group)
        mpi.group_free((word)&group);
    for (int i = 0; i < size; i++) {
        ranks[i] = failed || found[i] < 0 ? -1 : found[i];
        same += ranks[i] == i;
    }
    of->untold = same < size && !levels && lists + bytes > LISTS;
    if (same == size || of->untold) {
        free(ranks);
        return true;
    }
    of->world = realloc(ranks, bytes);
    lists += of->world ? bytes : 0;
    return of->world;
}

word object_of(word handle)
{
    return is_from_fortran(handle) ? mpi.comm_f2c(fortran_number(handle)) : handle;
}

static struct communicator *learn(word handle)
{
    struct communicator *comm = calloc(1, sizeof *comm);
    word object = object_of(handle);
    int inter = 0;

    if (!comm)
        return NULL;
    comm->handle = handle;
    comm->object = object;
    mpi.comm_test_inter(object, (word)&inter);
    comm->inter = inter;
    (inter ? mpi.comm_remote_size : mpi.comm_size)(object, (word)&comm->size);
    if (object != mpi.world) {
        if (!note_world_ranks(comm, object, inter, comm->size)) {
            free(comm);
            return NULL;
        }
        comm->place = places < COMMUNICATORS ? places++ : COMMUNICATORS - 1;
    }
    return comm;
}

static void put(struct communicator *one)
{
    unsigned place = place_of(one->handle, known_places);

    while (known[place])
        place = (place + 1) % known_places;
    known[place] = one;
}

/* Makes room for one more. False when there is no memory. */
static bool grow(void)
{
    struct communicator **old = known;
    unsigned count = known_places;

    if (known_count < known_places / 2)
        return true;
    known = calloc(count ? 2 * count : AT_FIRST, sizeof(struct communicator *));
    if (!known) {
        known = old;
        return false;
    }
    known_places = count ? 2 * count : AT_FIRST;
    for (unsigned i = 0; i < count; i++)
        if (old[i])
            put(old[i]);
    free(old);
    return true;
}

struct communicator *communicator_of(word handle)
{
    if (latest && latest->handle == handle)
        return latest;
    if (!grow())
        return NULL;
    for (unsigned place = place_of(handle, known_places); known[place]; place = (place + 1) % known_places)
        if (known[place]->handle == handle)
            return latest = known[place];
    latest = learn(handle);
    if (latest) {
        put(latest);
        known_count++;
    }
    return latest;
}

/* Takes one out, and puts those anew whose places it may have kept from them. */
static void take_out(unsigned place)
{
    struct communicator *one = known[place];

    known[place] = latest = NULL;
    known_count--;
    levels_forget(one->levels);
    lists -= one->world ? (size_t)one->size * sizeof(int) : 0;
    free((void *)one->world);
    free(one);
    while (place = (place + 1) % known_places, (one = known[place])) {
        known[place] = NULL;
        put(one);
    }
}

void forget_communicator(word handle)
{
    word object = object_of(handle);

    for (unsigned i = 0; i < known_places; i++)
        while (known[i] && known[i]->object == object)
            take_out(i);
}

const struct request *request_of(word handle)
{
    for (unsigned place = place_of(handle, REQUESTS); requests[place].handle; place = (place + 1) % REQUESTS)
        if (requests[place].handle == handle)
            return &requests[place];
    return NULL;
}

void keep_request(struct request request)
{
    unsigned place = place_of(request.handle, REQUESTS);

    if (!request.handle || requests_count >= REQUESTS / 2)
        return;
    while (requests[place].handle && requests[place].handle != request.handle)
        place = (place + 1) % REQUESTS;
    requests_count += requests[place].handle == 0;
    requests[place] = request;
}

void drop_request(word handle)
{
    const struct request *found = request_of(handle);
    unsigned place;

    if (!found)
        return;
    place = (unsigned)(found - requests);
    requests[place].handle = 0;
    requests_count--;
    while (place = (place + 1) % REQUESTS, requests[place].handle) {
        struct request one = requests[place];

        requests[place].handle = 0;
        requests_count--;
        keep_request(one);
    }
}
