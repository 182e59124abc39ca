#include "pending.h"

#include <stdlib.h>
#include <string.h>

enum { PLACES = 64 }; /* a power of two */

unsigned pending_count;
static struct pending *table[PLACES];

struct pending *pending_new(int ranks, int64_t bytes)
{
    struct pending *one = calloc(1, sizeof *one + 4 * (size_t)ranks * sizeof *one->lists);

    if (!one)
        return NULL;
    one->last = -1;
    one->sent_counts = one->lists;
    one->sent_places = one->sent_counts + ranks;
    one->got_counts = one->sent_places + ranks;
    one->got_places = one->got_counts + ranks;
    one->pieces = bytes ? malloc((size_t)bytes) : NULL;
    if (one->pieces || !bytes)
        return one;
    free(one);
    return NULL;
}

void pending_free(struct pending *one)
{
    if (one)
        free(one->pieces);
    free(one);
}

/* Where the table names the one with this handle, or where its list ends. */
static struct pending **place_of(word request)
{
    struct pending **place = &table[((uint64_t)request * 0x9e3779b97f4a7c15U >> 40) & (PLACES - 1)];

    while (*place && (*place)->request != request)
        place = &(*place)->next;
    return place;
}

static void take_out(struct pending **place)
{
    *place = (*place)->next;
    pending_count--;
}

void pending_forget(word request)
{
    struct pending **place = place_of(request);

    if (*place)
        take_out(place);
}

void pending_keep(struct pending *one, word request)
{
    pending_forget(request);
    one->request = request;
    *place_of(request) = one;
    pending_count++;
}

struct pending *pending_among(int count, word requests)
{
    size_t size = mpi.short_handles ? sizeof(int) : sizeof(word);
    struct pending *named = NULL, *one;

    for (int i = 0; requests && i < count; i++) {
        word at = requests + (size_t)i * size;

        one = *place_of(handle_at(at));
        if (!one || one->is_named) /* or the library calls itself by a name of ours */
            continue;
        one->is_named = true;
        one->at = at;
        one->named = named;
        named = one;
    }
    return named;
}

/* In the order of ranks, so it is the same however operators commute and whatever the library does. */
static void finish(struct pending *one)
{
    if (one->is_done)
        return;
    one->is_done = true;
    for (int rank = 1; rank <= one->last; rank++)
        mpi.reduce_local((word)(one->pieces + (rank - 1) * one->bytes), (word)(one->pieces + rank * one->bytes),
                         (word)one->count, one->type, one->operator);
    if (one->last >= 0)
        memcpy((void *)one->got, one->pieces + one->last * one->bytes, (size_t)one->bytes);
}

void pending_complete(struct pending *named)
{
    for (; named; named = named->named)
        finish(named);
}

void pending_after(struct pending *named)
{
    while (named) {
        struct pending *one = named;

        named = one->named;
        one->is_named = false;
        if (handle_at(one->at) == one->request)
            continue;
        finish(one);
        if (*place_of(one->request) == one)
            take_out(place_of(one->request));
        pending_free(one);
    }
}
