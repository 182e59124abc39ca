#include "shared.h"

#include "exchange.h"
#include "fortran.h"
#include "imports.h"
#include "objects.h"
#include "receives.h"
#include "segment.h"
#include "ticks.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LEAST = 64 * 1024, /* bytes of a message that goes so: from where on libraries ask before they send, as UCX does */
    LEAST_OF_MPICH = 32 * 1024, /* sooner */
    MOST = 256 * 1024, /* larger ones are as fast by TCP, whose two ends copy at once */
    LOOK_EACH = 8,     /* messages */
    STAY_AWAY = 200000000, /* nanoseconds */
    OWN_TAG = 1,
};

bool shared;
static struct segment_places places;
static unsigned char secret[SECRET_BYTES];
static bool is_over, receives_so;
static int fortran_byte; /* MPI_BYTE as Fortran has it */
static int own, ranks, least;
static word alone; /* a communicator of this rank, whose errors are returned */
static struct outgoing *outgoing; /* by rank */
static char *packed; /* a message whose elements have gaps */
static uint64_t away_since; /* nanoseconds; 0: this rank is where it was, as far as it noticed */
static word last_plain; /* a basic type without gaps; those are never freed */

static bool is_plain_type(word type)
{
    int64_t size;

    if (type == last_plain)
        return true;
    size = bytes_of(1, type);
    if (size == INT64_MAX || !is_plain(type, size))
        return false;
    last_plain = type;
    return true;
}

static bool read_secret(const char *text)
{
    for (unsigned i = 0; i < SECRET_BYTES; i++) {
        unsigned byte;

        if (sscanf(text + 2 * (size_t)i, "%2x", &byte) != 1) /* stops at the end of the text */
            return false;
        secret[i] = (unsigned char)byte;
    }
    return !text[2 * SECRET_BYTES];
}

static bool make_alone(void)
{
    word all = 0, only = 0;
    int failed = mpi.comm_group(mpi.world, (word)&all);

    failed = failed || mpi.group_incl(handle(all), 1, (word)&own, (word)&only);
    failed = failed || mpi.comm_create_group(mpi.world, handle(only), OWN_TAG, (word)&alone);
    if (only)
        mpi.group_free((word)&only);
    if (all)
        mpi.group_free((word)&all);
    alone = handle(alone);
    return !failed && !mpi.set_errhandler(alone, mpi.errors_return);
}

void shared_begin(bool usable, int rank, int size)
{
    const char *host = getenv("WHERRY_MPI_SHARED"), *kept = getenv("WHERRY_MPI_KEPT");
    const char *text = getenv("WHERRY_MPI_SECRET");

    if (!host || !kept || !text || !usable || !mpi.shared || is_spawned())
        return;
    own = rank;
    ranks = size;
    places = (struct segment_places){strdup(host), strdup(kept)};
    outgoing = calloc((size_t)size, sizeof *outgoing);
    packed = malloc(MOST);
    if (!places.host || !places.own || !outgoing || !packed || strlen(text) != 2 * (size_t)SECRET_BYTES ||
        !read_secret(text) || !make_alone())
        return;
    if (mpi.has_own_fortran)
        fortran_byte = mpi.type_c2f(mpi.byte);
    least = mpi.short_handles ? LEAST_OF_MPICH : LEAST;
    receives_so = !imports_unseen();
    shared = segment_begin(&places, own, receives_so);
    if (!shared)
        mpi.comm_free((word)&alone);
}

void shared_end(void)
{
    if (!shared)
        return;
    shared = false;
    mpi.comm_free((word)&alone);
    is_over = true;
}

void shared_remove(void)
{
    if (is_over)
        segment_remove(&places, own);
    is_over = false;
}

/* Called where a message did not go by memory: looks from time to time whether that is as this rank has been moved. A
 * move may freeze a node several times, so it does not come back at once. */
static void come_back(void)
{
    static unsigned times;
    uint64_t now;

    if (!away_since && (times++ % LOOK_EACH || segment_is_here(&places, own, receives_so)))
        return;
    now = nanoseconds(CLOCK_MONOTONIC);
    if (!away_since)
        away_since = now;
    if (now - away_since < STAY_AWAY)
        return;
    away_since = segment_return(&places, own, receives_so) ? 0 : now;
}

static struct descriptor *put(word at, int count, word type, int dest, word comm)
{
    int64_t bytes = bytes_of(count, type);
    struct descriptor *descriptor;
    int to;

    if (bytes < least || bytes > MOST)
        return NULL;
    to = world_rank(communicator_of(comm), dest);
    if (to < 0 || to == own || to >= ranks)
        return NULL;
    if (!is_plain_type(type)) {
        if (bytes_from(packed, at, count, type, bytes, comm))
            return NULL;
        at = (word)packed;
    }
    descriptor = segment_put(&places, &outgoing[to], to, own, (const void *)at, (uint64_t)bytes);
    if (descriptor)
        memcpy(descriptor->secret, secret, sizeof secret);
    else
        come_back();
    return descriptor;
}

static int number(bool fortran, word argument)
{
    return fortran ? *(const int *)argument : (int)argument;
}

static word type_of(bool fortran, word argument)
{
    return fortran ? type_in_c(fortran_handle(argument)) : handle(argument);
}

static word comm_of(bool fortran, word argument)
{
    return fortran ? object_of(fortran_handle(argument)) : handle(argument);
}

static word request_of_program(bool fortran, word address)
{
    return fortran ? mpi.request_f2c(*(const int *)address) : handle_at(address);
}

static word buffer_of(bool fortran, word argument)
{
    return fortran ? fortran_buffer(argument) : argument;
}

void shared_send(bool fortran, word *at, word *count, word *type, word dest, word comm)
{
    static const int bytes = sizeof(struct descriptor);
    struct descriptor *descriptor = put(buffer_of(fortran, *at), number(fortran, *count), type_of(fortran, *type),
                                        number(fortran, dest), comm_of(fortran, comm));

    if (!descriptor)
        return;
    *at = (word)descriptor;
    *count = fortran ? (word)&bytes : (word)bytes;
    *type = fortran ? (word)&fortran_byte : mpi.byte;
}

word shared_status(bool fortran, word status, struct own_status *memory)
{
    return status == (fortran ? (word)mpi.fortran_status_ignore : mpi.statuses_ignore) ? (word)memory : status;
}

/* The first bytes of a received message; elements of any type, in the order in which they were sent. */
static bool read_begin(struct descriptor *descriptor, word at, word type)
{
    int64_t size, count;
    char *bytes;
    bool done;

    if (is_plain_type(type)) {
        memcpy(descriptor, (const void *)at, sizeof *descriptor);
        return true;
    }
    size = bytes_of(1, type);
    if (size <= 0 || size > INT_MAX / 2)
        return false;
    count = ((int64_t)sizeof *descriptor + size - 1) / size;
    bytes = malloc((size_t)(count * size));
    done = bytes && !bytes_from(bytes, at, count, type, count * size, alone);
    if (done)
        memcpy(descriptor, bytes, sizeof *descriptor);
    free(bytes);
    return done;
}

static int say_lost(const struct descriptor *descriptor, int error)
{
    dprintf(STDERR_FILENO, "wherry: message %llu of rank %u to rank %d is lost in %s: %s\n",
            (unsigned long long)descriptor->serial, descriptor->sender, own, places.host, strerror(error));
    return NO_MEMORY;
}

static int take(const struct descriptor *descriptor, void *to)
{
    bool moved;
    int error = segment_take(&places, own, descriptor, to, &moved);

    if (moved && !away_since)
        away_since = nanoseconds(CLOCK_MONOTONIC);
    return error ? say_lost(descriptor, error) : 0;
}

/* By the library where elements have gaps, the message does not fit, or its end is no element's. */
static int unfold(const struct descriptor *descriptor, word at, int count, word type)
{
    struct own_status status;
    char *bytes = malloc(descriptor->bytes);
    int error;

    if (!bytes)
        return NO_MEMORY;
    error = take(descriptor, bytes);
    if (!error)
        error = mpi.sendrecv((word)bytes, (word)descriptor->bytes, mpi.byte, 0, OWN_TAG, at, (word)count, type, 0, OWN_TAG,
                             alone, (word)&status);
    free(bytes);
    return error;
}

static int get_message(word at, int count, word type, word status)
{
    int64_t room = bytes_of(count, type);
    struct descriptor descriptor;
    int came = 0, error;

    if (room < (int64_t)sizeof descriptor || mpi.get_count(status, mpi.byte, (word)&came))
        return 0;
    if (came >= least && came <= MOST)
        come_back();
    if (came != (int)sizeof descriptor)
        return 0;
    if (!read_begin(&descriptor, at, type) || memcmp(descriptor.secret, secret, sizeof secret))
        return 0;
    if (descriptor.sender >= (uint32_t)ranks || descriptor.bytes > MOST)
        return say_lost(&descriptor, EBADMSG);
    if (is_plain_type(type) && descriptor.bytes <= (uint64_t)room) {
        error = take(&descriptor, (void *)at);
    } else
        error = unfold(&descriptor, at, count, type);
    return error ? error : mpi.status_set_elements(status, mpi.byte, (word)descriptor.bytes);
}

static int end_receive(word at, int count, word type, word comm, word status)
{
    int error = get_message(at, count, type, status);

    if (error)
        mpi.call_errhandler(comm, (word)error);
    return error;
}

static void forget(word request)
{
    const struct receive *found = receive_of(request);
    word type = found && found->owns_type ? found->type : 0;

    receive_drop(request);
    if (type) {
        mpi.type_free((word)&type);
        forget_sizes();
    }
}

int shared_receive(bool fortran, int error, word at, word count, word type, word comm, word status)
{
    if (error || !receives_so)
        return error;
    return end_receive(buffer_of(fortran, at), number(fortran, count), type_of(fortran, type), comm_of(fortran, comm),
                       status);
}

int shared_post(bool fortran, word request, word at, word count, word type, word comm, bool persistent)
{
    struct receive one = {
        .request = request_of_program(fortran, request),
        .at = buffer_of(fortran, at),
        .count = number(fortran, count),
        .type = type_of(fortran, type),
        .comm = comm_of(fortran, comm),
        .persistent = persistent,
    };
    word copy = 0;

    if (!receives_so)
        return 0;
    forget(one.request); /* it ended with an error */
    if (bytes_of(one.count, one.type) < (int64_t)sizeof(struct descriptor))
        return 0;
    if (!is_plain_type(one.type)) { /* the program may free it before the request is complete */
        if (mpi.type_dup(one.type, (word)&copy))
            return mpi.call_errhandler(one.comm, NO_MEMORY), NO_MEMORY;
        one.type = handle(copy);
        one.owns_type = true;
    }
    return receive_keep(one) ? 0 : (mpi.call_errhandler(one.comm, NO_MEMORY), NO_MEMORY);
}

int shared_complete(word request, word status)
{
    const struct receive *found = receive_of(request);
    struct receive one;
    int error;

    if (!found)
        return 0;
    one = *found;
    error = end_receive(one.at, one.count, one.type, one.comm, status);
    if (!one.persistent)
        forget(request);
    return error;
}

/* A receive that is under way is never known to have ended then, so its message is nobody's. */
void shared_forget(bool fortran, word request)
{
    forget(request_of_program(fortran, request));
}
