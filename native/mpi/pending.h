/*
 * pending: non-blocking collectives of ours that are under way, by the request that the program has for each.
 *
 * That is a request of the library's own, which completes it without us. The rest, for the rank alone, is done in the
 * call that reports the end to the program: requests that it names are looked up before, and have ended if their
 * handles are others afterwards. So the wrappers of all functions that may report ends name the requests here, those by
 * the profiling name, too, as other tools and Fortran's functions call these. Below MPI_THREAD_MULTIPLE one thread
 * calls at a time.
 */
#ifndef WHERRY_MPI_PENDING_H
#define WHERRY_MPI_PENDING_H

#include "library.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HIDDEN __attribute__((visibility("hidden")))

struct pending {
    struct pending *next, *named; /* in the table; among the requests that a call names */
    word request, at;             /* its handle, and where the call has it */
    bool is_named, is_done;

    /* Of a reduction: ranks' elements, one after the other, are combined up to the last one, which is the result. */
    int last; /* below 0: nothing is combined */
    int64_t count, bytes; /* of each */
    word type, operator, got;
    char *pieces;

    int *sent_counts, *sent_places, *got_counts, *got_places; /* by rank: the library may read them until it has ended */
    int lists[];
};

extern unsigned pending_count HIDDEN;

/* With lists of zeros, and memory for so many bytes of pieces; NULL when there is none. */
struct pending *pending_new(int ranks, int64_t bytes) HIDDEN;
void pending_free(struct pending *one) HIDDEN;
/* It is under way, with a request of this handle. */
void pending_keep(struct pending *one, word request) HIDDEN;

struct pending *pending_among(int count, word requests) HIDDEN;
void pending_after(struct pending *named) HIDDEN;
void pending_complete(struct pending *named) HIDDEN;
void pending_forget(word request) HIDDEN;

/* Before a call that may complete some of these requests: finds ours. */
static inline struct pending *pending_named(word count, word requests)
{
    return pending_count ? pending_among((int)count, requests) : NULL;
}

/* After it. */
static inline void pending_ended(struct pending *named)
{
    if (named)
        pending_after(named);
}

/* After a call that reports whether they have completed, and leaves them. */
static inline void pending_seen(struct pending *named, word flag)
{
    if (named && flag && *(const int *)flag)
        pending_complete(named);
    if (named)
        pending_after(named);
}

/* The program gives up a request, which MPI forbids while it is a collective's: its memory stays, as the library
 * may still write to it. */
static inline void pending_freed(word request)
{
    if (pending_count)
        pending_forget(handle_at(request));
}

#endif
