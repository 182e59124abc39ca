/*
 * The last contents of every page that came, by process and address.
 *
 *   (pid, address / 2 MiB) -> chunk:  | page | page | hole | page | …        512 pages, memory of their own
 *                            rounds:  |  3   |  1   |  0   |  3   | …        when each came last; 0: zero, or a hole
 *
 * Connections receive into chunks side by side, as no page comes twice between two ends of a round. Functions that take
 * chunks away wait until no frame is being received.
 */
#ifndef WHERRY_PAGER_CACHE_H
#define WHERRY_PAGER_CACHE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "stream.h"

enum {
    CHUNK = 2 << 20,
    CHUNK_PAGES = CHUNK / STREAM_PAGE,
    CHUNK_WORDS = CHUNK_PAGES / 64,
};

struct chunk {
    uint8_t *bytes;
    uint64_t address;
    uint32_t pid;
    _Atomic uint32_t references; /* address maps share it after a fork */
    struct chunk *next;          /* in the cache */
    uint16_t rounds[CHUNK_PAGES];
    _Atomic uint64_t missing[CHUNK_WORDS]; /* contents that are still at the source (fetch.h) */
    _Atomic uint64_t asked[CHUNK_WORDS];   /* for which the source was asked */
};

struct cache {
    pthread_rwlock_t lock;  /* read: a frame is being received */
    pthread_mutex_t finding;
    struct chunk **buckets;
    size_t bucket_count, count;
};

int cache_open(struct cache *cache);
void cache_close(struct cache *cache);

void cache_begin_frame(struct cache *cache);
void cache_end_frame(struct cache *cache);
/*
 * Between the two above: where the contents of these pages go, which are there from now on. The number of pieces, or
 * -ENOMEM.
 */
int cache_place(struct cache *cache, const struct stream_frame *frame, uint16_t round, struct iovec pieces[2]);

/* These pages of a chunk have contents, which come later. 0 or -ENOMEM. */
int cache_await(struct cache *cache, uint32_t pid, uint64_t address, uint16_t round, const uint64_t pages[CHUNK_WORDS]);
void cache_zero(struct cache *cache, uint32_t pid, uint64_t address, uint64_t pages);
/* Pages of this process that came before this round are void. */
void cache_void(struct cache *cache, uint32_t pid, uint16_t round);

/* Hands over the chunks of a process, by address, and their references. 0 or -ENOMEM. The caller frees the list. */
int cache_take(struct cache *cache, uint32_t pid, struct chunk ***chunks, size_t *count);
/* Forgets all that was not taken. */
void cache_drop(struct cache *cache);

void chunk_get(struct chunk *chunk);
void chunk_put(struct chunk *chunk);
/* Marks the pages that have contents. True when some came in this round or later. */
int chunk_present(const struct chunk *chunk, uint16_t round, uint64_t present[CHUNK_WORDS]);

#endif
