/* See cache.h. */
#include "cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BUCKETS = 1024 };

static const uint64_t CHUNK_MASK = CHUNK - 1;

void chunk_get(struct chunk *chunk)
{
    atomic_fetch_add(&chunk->references, 1);
}

void chunk_put(struct chunk *chunk)
{
    if (atomic_fetch_sub(&chunk->references, 1) != 1)
        return;
    munmap(chunk->bytes, CHUNK);
    free(chunk);
}

int chunk_present(const struct chunk *chunk, uint16_t round, uint64_t present[CHUNK_WORDS])
{
    int recent = 0;

    memset(present, 0, CHUNK_WORDS * sizeof(*present));
    for (int i = 0; i < CHUNK_PAGES; i++) {
        if (chunk->rounds[i])
            present[i / 64] |= UINT64_C(1) << i % 64;
        recent |= chunk->rounds[i] >= round;
    }
    return recent;
}

/* No huge pages: clearing a whole one before the first page comes made the first round slower, by half. */
static struct chunk *chunk_new(uint32_t pid, uint64_t address)
{
    struct chunk *chunk = calloc(1, sizeof(*chunk));
    void *bytes = MAP_FAILED;

    if (chunk)
        bytes = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED) {
        free(chunk);
        return NULL;
    }
    madvise(bytes, CHUNK, MADV_DONTFORK); /* a later guard would keep memory that is given back here */
    chunk->bytes = bytes;
    chunk->pid = pid;
    chunk->address = address;
    atomic_init(&chunk->references, 1);
    return chunk;
}

static size_t bucket_of(const struct cache *cache, uint32_t pid, uint64_t address)
{
    uint64_t key = (address / CHUNK) ^ (uint64_t)pid << 40;

    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (cache->bucket_count - 1);
}

static struct chunk *find(const struct cache *cache, uint32_t pid, uint64_t address)
{
    struct chunk *chunk = cache->buckets[bucket_of(cache, pid, address)];

    while (chunk && (chunk->pid != pid || chunk->address != address))
        chunk = chunk->next;
    return chunk;
}

static void insert(struct cache *cache, struct chunk *chunk)
{
    struct chunk **bucket = &cache->buckets[bucket_of(cache, chunk->pid, chunk->address)];

    chunk->next = *bucket;
    *bucket = chunk;
}

/* It works without, only slower. */
static void grow(struct cache *cache)
{
    struct chunk **old = cache->buckets, **buckets = calloc(cache->bucket_count * 2, sizeof(*buckets));
    size_t count = cache->bucket_count;

    if (!buckets)
        return;
    cache->buckets = buckets;
    cache->bucket_count *= 2;
    for (size_t i = 0; i < count; i++)
        while (old[i]) {
            struct chunk *chunk = old[i];

            old[i] = chunk->next;
            insert(cache, chunk);
        }
    free(old);
}

static struct chunk *found(struct cache *cache, uint32_t pid, uint64_t address)
{
    struct chunk *chunk;

    pthread_mutex_lock(&cache->finding);
    chunk = find(cache, pid, address);
    if (!chunk && (chunk = chunk_new(pid, address))) {
        if (cache->count >= cache->bucket_count)
            grow(cache);
        insert(cache, chunk);
        cache->count++;
    }
    pthread_mutex_unlock(&cache->finding);
    return chunk;
}

int cache_open(struct cache *cache)
{
    pthread_rwlockattr_t attributes;

    memset(cache, 0, sizeof(*cache));
    cache->bucket_count = BUCKETS;
    if (!(cache->buckets = calloc(BUCKETS, sizeof(*cache->buckets))))
        return -ENOMEM;
    pthread_mutex_init(&cache->finding, NULL);
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&cache->lock, &attributes);
    pthread_rwlockattr_destroy(&attributes);
    return 0;
}

void cache_close(struct cache *cache)
{
    cache_drop(cache);
    pthread_rwlock_destroy(&cache->lock);
    pthread_mutex_destroy(&cache->finding);
    free(cache->buckets);
}

void cache_begin_frame(struct cache *cache)
{
    pthread_rwlock_rdlock(&cache->lock);
}

void cache_end_frame(struct cache *cache)
{
    pthread_rwlock_unlock(&cache->lock);
}

int cache_place(struct cache *cache, const struct stream_frame *frame, uint16_t round, struct iovec pieces[2])
{
    uint64_t address = frame->address, pages = frame->pages;
    int count = 0;

    while (pages) {
        uint64_t first = (address & CHUNK_MASK) / STREAM_PAGE;
        uint64_t part = pages < CHUNK_PAGES - first ? pages : CHUNK_PAGES - first;
        struct chunk *chunk = found(cache, frame->pid, address & ~CHUNK_MASK);

        if (!chunk)
            return -ENOMEM;
        for (uint64_t i = 0; i < part; i++)
            chunk->rounds[first + i] = round;
        pieces[count++] = (struct iovec){chunk->bytes + first * STREAM_PAGE, part * STREAM_PAGE};
        address += part * STREAM_PAGE;
        pages -= part;
    }
    return count;
}

int cache_await(struct cache *cache, uint32_t pid, uint64_t address, uint16_t round, const uint64_t pages[CHUNK_WORDS])
{
    struct chunk *chunk;

    cache_begin_frame(cache);
    if ((chunk = found(cache, pid, address)))
        for (int i = 0; i < CHUNK_PAGES; i++)
            if (pages[i / 64] >> i % 64 & 1) {
                chunk->rounds[i] = round;
                chunk->missing[i / 64] |= UINT64_C(1) << i % 64;
            }
    cache_end_frame(cache);
    return chunk ? 0 : -ENOMEM;
}

static int is_empty(const struct chunk *chunk)
{
    for (int i = 0; i < CHUNK_PAGES; i++)
        if (chunk->rounds[i])
            return 0;
    return 1;
}

static void zero_in(struct chunk *chunk, uint64_t start, uint64_t end)
{
    uint64_t first = start <= chunk->address ? 0 : (start - chunk->address) / STREAM_PAGE;
    uint64_t last = end >= chunk->address + CHUNK ? CHUNK_PAGES : (end - chunk->address) / STREAM_PAGE;

    for (uint64_t i = first; i < last; i++)
        chunk->rounds[i] = 0;
}

/* The lock is held for writing, here and where a comment below demands it. */
static void forget(struct cache *cache, struct chunk *chunk)
{
    struct chunk **at = &cache->buckets[bucket_of(cache, chunk->pid, chunk->address)];

    while (*at != chunk)
        at = &(*at)->next;
    *at = chunk->next;
    cache->count--;
    chunk_put(chunk);
}

static void zero_few(struct cache *cache, uint32_t pid, uint64_t start, uint64_t end)
{
    for (uint64_t at = start & ~CHUNK_MASK; at < end; at += CHUNK) {
        struct chunk *chunk;

        pthread_mutex_lock(&cache->finding);
        chunk = find(cache, pid, at);
        pthread_mutex_unlock(&cache->finding);
        if (chunk)
            zero_in(chunk, start, end);
    }
}

/* A hole may be as large as the address space. Locked for writing. */
static void zero_many(struct cache *cache, uint32_t pid, uint64_t start, uint64_t end)
{
    for (size_t i = 0; i < cache->bucket_count; i++)
        for (struct chunk *chunk = cache->buckets[i], *next; chunk; chunk = next) {
            next = chunk->next;
            if (chunk->pid != pid || chunk->address >= end || chunk->address + CHUNK <= start)
                continue;
            zero_in(chunk, start, end);
            if (is_empty(chunk))
                forget(cache, chunk);
        }
}

void cache_zero(struct cache *cache, uint32_t pid, uint64_t address, uint64_t pages)
{
    uint64_t end = address + pages * STREAM_PAGE;

    if (pages < CHUNK_PAGES) {
        pthread_rwlock_rdlock(&cache->lock);
        zero_few(cache, pid, address, end);
    } else {
        pthread_rwlock_wrlock(&cache->lock);
        zero_many(cache, pid, address, end);
    }
    pthread_rwlock_unlock(&cache->lock);
}

void cache_void(struct cache *cache, uint32_t pid, uint16_t round)
{
    pthread_rwlock_wrlock(&cache->lock);
    for (size_t i = 0; i < cache->bucket_count; i++)
        for (struct chunk *chunk = cache->buckets[i], *next; chunk; chunk = next) {
            next = chunk->next;
            if (chunk->pid != pid)
                continue;
            for (int page = 0; page < CHUNK_PAGES; page++)
                if (chunk->rounds[page] < round)
                    chunk->rounds[page] = 0;
            if (is_empty(chunk))
                forget(cache, chunk);
        }
    pthread_rwlock_unlock(&cache->lock);
}

static int by_address(const void *a, const void *b)
{
    const struct chunk *first = *(struct chunk *const *)a, *second = *(struct chunk *const *)b;

    return first->address < second->address ? -1 : first->address > second->address;
}

int cache_take(struct cache *cache, uint32_t pid, struct chunk ***chunks, size_t *count)
{
    int error = -ENOMEM;

    pthread_rwlock_wrlock(&cache->lock);
    *count = 0;
    if ((*chunks = malloc((cache->count + 1) * sizeof(**chunks)))) {
        for (size_t i = 0; i < cache->bucket_count; i++)
            for (struct chunk **at = &cache->buckets[i], *chunk; (chunk = *at);) {
                if (chunk->pid != pid) {
                    at = &chunk->next;
                    continue;
                }
                *at = chunk->next;
                (*chunks)[(*count)++] = chunk;
            }
        cache->count -= *count;
        qsort(*chunks, *count, sizeof(**chunks), by_address);
        error = 0;
    }
    pthread_rwlock_unlock(&cache->lock);
    return error;
}

void cache_drop(struct cache *cache)
{
    pthread_rwlock_wrlock(&cache->lock);
    for (size_t i = 0; i < cache->bucket_count; i++)
        while (cache->buckets[i]) {
            struct chunk *chunk = cache->buckets[i];

            cache->buckets[i] = chunk->next;
            chunk_put(chunk);
        }
    cache->count = 0;
    pthread_rwlock_unlock(&cache->lock);
}
