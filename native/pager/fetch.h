/*
 * Pages that are still at the source while the node runs (post-copy): which they are, who waits for one, and how long.
 *
 *   M frames --> chunk->missing           a fault at such a page --> chunk->asked, a queue --> thread --Q--> source
 *   D, C, Z  --> the chunk's bytes, then `missing` is cleared; an eventfd reports a page that was asked for
 *
 * A page belongs to a chunk of the cache and its number there, wherever forks and mremap have taken it meanwhile. A
 * thread that finds it missing first sets `asked`, then looks at `missing` again; an arriving page is noted in the
 * other order. So nobody waits for a page that has come.
 */
#ifndef WHERRY_PAGER_FETCH_H
#define WHERRY_PAGER_FETCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "cache.h"

enum {
    FETCH_STALL_S = 60,   /* without a page, by default: then the node is given up */
    FETCH_TOTAL_S = 3600, /* in all */
};

struct fetch_request {
    uint32_t pid;
    uint64_t address;
};

struct fetch {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct chunk **chunks;         /* by process and address; NULL: all its pages have come */
    struct fetch_request *places;  /* of the chunks, in the same order */
    uint32_t *lefts;
    size_t count;
    struct fetch_request *queue;
    size_t queued, room;
    bool began, end;
    pthread_t thread;
    int (*ask)(void *context, const struct fetch_request *request); /* NULL: nothing is needed any more */
    void *context;
    int notify;
    _Atomic uint64_t left;               /* pages that have not come */
    _Atomic uint64_t demanded, others;   /* pages that came after they were asked for, or not */
    _Atomic bool answered;               /* a page came for which somebody waits */
    /* the main thread's: */
    int64_t began_ms, progress_ms, complete_ms;
    uint64_t seen;
};

void fetch_open(struct fetch *fetch, int notify);
/* All M have come: notes the awaited pages. `ask` is called in a thread of its own. 0 or negative errno. */
int fetch_begin(struct fetch *fetch, struct cache *cache,
                int (*ask)(void *context, const struct fetch_request *request), void *context);
/* Where the contents of a D or C go, or of a Z, which are zero then. -EPROTO: not all of these pages are awaited. */
int fetch_place(struct fetch *fetch, const struct stream_frame *frame, struct iovec *piece);
/* They are there. */
void fetch_came(struct fetch *fetch, const struct stream_frame *frame);
/*
 * A process lacks this page of the chunk. True when it has to wait: the source is asked, and the eventfd reports that
 * it has come.
 */
bool fetch_waits(struct fetch *fetch, struct chunk *chunk, unsigned page);
/* Nothing is needed any more: has F sent to the source. */
void fetch_end(struct fetch *fetch);
/* After that, when the connection has been closed: waits for its end. */
void fetch_join(struct fetch *fetch);
/* When nothing is received any more. */
void fetch_close(struct fetch *fetch);

/* To be called now and then: 0; -ETIMEDOUT: too long without a page; -ETIME: too long in all. */
int fetch_look(struct fetch *fetch, int64_t now_ms, int64_t stall_ms, int64_t total_ms);

#endif
