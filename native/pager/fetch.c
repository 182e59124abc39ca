/* See fetch.h. */
#include "fetch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

enum { GOODBYE_S = 1 }; /* for the frame F to the source, unless its connection is full */

static const uint64_t ONE = 1;

void fetch_open(struct fetch *fetch, int notify)
{
    pthread_mutex_init(&fetch->lock, NULL);
    pthread_cond_init(&fetch->more, NULL);
    fetch->notify = notify;
}

static uint32_t count_missing(const struct chunk *chunk)
{
    uint32_t count = 0;

    for (int word = 0; word < CHUNK_WORDS; word++)
        count += (uint32_t)__builtin_popcountll(chunk->missing[word]);
    return count;
}

static int compare(uint32_t pid, uint64_t address, const struct fetch_request *place)
{
    if (pid != place->pid)
        return pid < place->pid ? -1 : 1;
    return address < place->address ? -1 : address > place->address;
}

static int by_place(const void *a, const void *b)
{
    const struct chunk *first = *(struct chunk *const *)a;
    const struct chunk *second = *(struct chunk *const *)b;

    return compare(first->pid, first->address, &(struct fetch_request){second->pid, second->address});
}

static void collect(struct fetch *fetch, struct cache *cache)
{
    for (size_t i = 0; i < cache->bucket_count; i++)
        for (struct chunk *chunk = cache->buckets[i]; chunk; chunk = chunk->next)
            if (count_missing(chunk)) {
                chunk_get(chunk);
                fetch->chunks[fetch->count++] = chunk;
            }
    qsort(fetch->chunks, fetch->count, sizeof(struct chunk *), by_place);
    for (size_t i = 0; i < fetch->count; i++) {
        fetch->places[i] = (struct fetch_request){fetch->chunks[i]->pid, fetch->chunks[i]->address};
        fetch->lefts[i] = count_missing(fetch->chunks[i]);
        fetch->left += fetch->lefts[i];
    }
}

/* Asks for one page after the other; when it is to end, it may be blocked by a full connection. */
static void *run(void *argument)
{
    struct fetch *fetch = argument;
    int error = 0;

    pthread_mutex_lock(&fetch->lock);
    while (!error) {
        struct fetch_request request;

        while (!fetch->queued && !fetch->end)
            pthread_cond_wait(&fetch->more, &fetch->lock);
        if (fetch->end)
            break;
        request = fetch->queue[0];
        memmove(fetch->queue, fetch->queue + 1, --fetch->queued * sizeof(request));
        pthread_mutex_unlock(&fetch->lock);
        error = fetch->ask(fetch->context, &request);
        pthread_mutex_lock(&fetch->lock);
    }
    pthread_mutex_unlock(&fetch->lock);
    if (!error)
        fetch->ask(fetch->context, NULL);
    return NULL;
}

int fetch_begin(struct fetch *fetch, struct cache *cache,
                int (*ask)(void *context, const struct fetch_request *request), void *context)
{
    size_t room;
    int error = 0;

    fetch->ask = ask;
    fetch->context = context;
    pthread_rwlock_wrlock(&cache->lock);
    room = cache->count + 1;
    fetch->chunks = calloc(room, sizeof(*fetch->chunks));
    fetch->places = calloc(room, sizeof(*fetch->places));
    fetch->lefts = calloc(room, sizeof(*fetch->lefts));
    if (fetch->chunks && fetch->places && fetch->lefts)
        collect(fetch, cache);
    else
        error = -ENOMEM;
    pthread_rwlock_unlock(&cache->lock);
    if (!error)
        error = -pthread_create(&fetch->thread, NULL, run, fetch);
    fetch->began = !error;
    return error;
}

/* The index of the chunk; -1: none of its pages is awaited. The lock is held. */
static ptrdiff_t find(const struct fetch *fetch, uint32_t pid, uint64_t address)
{
    size_t low = 0, high = fetch->count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = compare(pid, address, &fetch->places[middle]);

        if (!order)
            return fetch->chunks[middle] ? (ptrdiff_t)middle : -1;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

static bool all_missing(const struct chunk *chunk, unsigned first, unsigned end)
{
    for (unsigned page = first; page < end; page++)
        if (!(chunk->missing[page / 64] >> page % 64 & 1))
            return false;
    return true;
}

int fetch_place(struct fetch *fetch, const struct stream_frame *frame, struct iovec *piece)
{
    unsigned first = (unsigned)(frame->address % CHUNK / STREAM_PAGE);
    int error = -EPROTO;
    ptrdiff_t at;

    if (frame->pages > CHUNK_PAGES - first)
        return -EPROTO;
    pthread_mutex_lock(&fetch->lock);
    at = find(fetch, frame->pid, frame->address / CHUNK * CHUNK);
    if (at >= 0 && all_missing(fetch->chunks[at], first, first + frame->pages)) {
        piece->iov_base = fetch->chunks[at]->bytes + (size_t)first * STREAM_PAGE;
        piece->iov_len = (size_t)frame->pages * STREAM_PAGE;
        if (frame->type == 'Z')
            memset(piece->iov_base, 0, piece->iov_len);
        error = 0;
    }
    pthread_mutex_unlock(&fetch->lock);
    return error;
}

void fetch_came(struct fetch *fetch, const struct stream_frame *frame)
{
    unsigned first = (unsigned)(frame->address % CHUNK / STREAM_PAGE);
    struct chunk *chunk;
    uint32_t demanded = 0, count = 0;
    ptrdiff_t at;

    pthread_mutex_lock(&fetch->lock);
    at = find(fetch, frame->pid, frame->address / CHUNK * CHUNK);
    chunk = at < 0 ? NULL : fetch->chunks[at];
    for (unsigned page = first; chunk && page < first + frame->pages; page++) {
        uint64_t bit = ONE << page % 64;

        if (!(atomic_fetch_and(&chunk->missing[page / 64], ~bit) & bit))
            continue;
        count++;
        demanded += (atomic_load(&chunk->asked[page / 64]) & bit) != 0;
    }
    if (chunk && !(fetch->lefts[at] -= count)) {
        fetch->chunks[at] = NULL;
        chunk_put(chunk);
    }
    fetch->demanded += demanded;
    fetch->others += count - demanded;
    fetch->left -= count;
    if (demanded)
        fetch->answered = true;
    pthread_mutex_unlock(&fetch->lock);
    if (demanded || !fetch->left)
        eventfd_write(fetch->notify, 1);
}

static void ask_for(struct fetch *fetch, const struct chunk *chunk, unsigned page)
{
    pthread_mutex_lock(&fetch->lock);
    if (fetch->queued == fetch->room) {
        size_t room = fetch->room + 64;
        struct fetch_request *more = realloc(fetch->queue, room * sizeof(*more));

        if (more) {
            fetch->queue = more;
            fetch->room = room;
        }
    }
    if (fetch->queued < fetch->room) /* else it comes in the background */
        fetch->queue[fetch->queued++] =
            (struct fetch_request){chunk->pid, chunk->address + (uint64_t)page * STREAM_PAGE};
    pthread_cond_signal(&fetch->more);
    pthread_mutex_unlock(&fetch->lock);
}

bool fetch_waits(struct fetch *fetch, struct chunk *chunk, unsigned page)
{
    uint64_t bit = ONE << page % 64;

    if (!(atomic_load(&chunk->missing[page / 64]) & bit))
        return false;
    if (!(atomic_fetch_or(&chunk->asked[page / 64], bit) & bit))
        ask_for(fetch, chunk, page);
    return (atomic_load(&chunk->missing[page / 64]) & bit) != 0;
}

void fetch_end(struct fetch *fetch)
{
    struct timespec until;

    if (!fetch->began)
        return;
    pthread_mutex_lock(&fetch->lock);
    fetch->end = true;
    pthread_cond_signal(&fetch->more);
    pthread_mutex_unlock(&fetch->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += GOODBYE_S;
    fetch->began = pthread_timedjoin_np(fetch->thread, NULL, &until) != 0;
}

void fetch_join(struct fetch *fetch)
{
    if (fetch->began)
        pthread_join(fetch->thread, NULL);
    fetch->began = false;
}

void fetch_close(struct fetch *fetch)
{
    for (size_t i = 0; i < fetch->count; i++)
        if (fetch->chunks[i])
            chunk_put(fetch->chunks[i]);
    free(fetch->chunks);
    free(fetch->places);
    free(fetch->lefts);
    free(fetch->queue);
    fetch->count = 0;
}

int fetch_look(struct fetch *fetch, int64_t now_ms, int64_t stall_ms, int64_t total_ms)
{
    uint64_t left = fetch->left;

    if (!fetch->began_ms)
        fetch->began_ms = fetch->progress_ms = now_ms;
    if (left != fetch->seen)
        fetch->progress_ms = now_ms;
    fetch->seen = left;
    if (!left) {
        if (!fetch->complete_ms)
            fetch->complete_ms = now_ms;
        return 0;
    }
    if (now_ms - fetch->progress_ms >= stall_ms)
        return -ETIMEDOUT;
    return now_ms - fetch->began_ms >= total_ms ? -ETIME : 0;
}
