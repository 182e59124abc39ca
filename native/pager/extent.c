/* See extent.h. */
#include "extent.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t ONE = 1;

uint64_t extent_end(const struct extent *extent)
{
    return extent->start + (uint64_t)extent->pages * STREAM_PAGE;
}

void extent_free(_Atomic uint64_t *left, struct extent *extent)
{
    atomic_fetch_sub(left, extent->left);
    if (extent->chunk)
        chunk_put(extent->chunk);
    free(extent);
}

void extents_free(_Atomic uint64_t *left, struct extent_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        extent_free(left, list->extents[i]);
    free(list->extents);
    *list = (struct extent_list){0};
}

size_t extents_search(const struct extent_list *list, uint64_t address)
{
    size_t low = 0, high = list->count;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (extent_end(list->extents[middle]) > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static int extents_reserve(struct extent_list *list, size_t room)
{
    size_t capacity = list->capacity ? list->capacity : 16;
    struct extent **more;

    while (capacity < list->count + room)
        capacity *= 2;
    if (capacity == list->capacity)
        return 0;
    if (!(more = realloc(list->extents, capacity * sizeof(*more))))
        return -ENOMEM;
    list->extents = more;
    list->capacity = capacity;
    return 0;
}

int extents_insert(struct extent_list *list, size_t at, struct extent *const *extents, size_t count)
{
    if (!count)
        return 0;
    if (extents_reserve(list, count) < 0)
        return -ENOMEM;
    memmove(list->extents + at + count, list->extents + at, (list->count - at) * sizeof(*extents));
    memcpy(list->extents + at, extents, count * sizeof(*extents));
    list->count += count;
    return 0;
}

static struct extent *extent_copy(const struct extent *extent)
{
    struct extent *copy = malloc(sizeof(*copy));

    if (copy) {
        memcpy(copy, extent, sizeof(*copy));
        if (copy->chunk)
            chunk_get(copy->chunk);
    }
    return copy;
}

/* The bits of a word that are pages first .. end - 1. */
static uint64_t bits_of(unsigned word, unsigned first, unsigned end)
{
    uint64_t from = first <= word * 64 ? ~UINT64_C(0) : first >= word * 64 + 64 ? 0 : ~UINT64_C(0) << first % 64;
    uint64_t to = end >= word * 64 + 64 ? ~UINT64_C(0) : end <= word * 64 ? 0 : ~(~UINT64_C(0) << end % 64);

    return from & to;
}

/* Keeps the pages first .. end of the chunk. Other extents count the others, so the map's `left` stays as it is. */
static void extent_narrow(struct extent *extent, unsigned first, unsigned end)
{
    uint32_t left = 0;

    extent->start += (uint64_t)(first - extent->first) * STREAM_PAGE;
    extent->first = (uint16_t)first;
    extent->pages = (uint16_t)(end - first);
    for (unsigned word = 0; word < CHUNK_WORDS; word++) {
        extent->mapped[word] &= bits_of(word, first, end);
        extent->todo[word] &= bits_of(word, first, end);
        left += (uint32_t)__builtin_popcountll(extent->todo[word]);
    }
    extent->left = left;
    if (!left && extent->chunk) {
        chunk_put(extent->chunk);
        extent->chunk = NULL;
    }
}

/* Makes the address a border of extents, where one lies across it. */
static int split(struct extent_list *list, uint64_t address)
{
    size_t at = extents_search(list, address);
    struct extent *extent, *tail;
    unsigned page;

    if (at == list->count || list->extents[at]->start >= address)
        return 0;
    extent = list->extents[at];
    page = extent->first + (unsigned)((address - extent->start) / STREAM_PAGE);
    if (!(tail = extent_copy(extent)))
        return -ENOMEM;
    if (extents_insert(list, at + 1, &tail, 1) < 0) {
        extent_narrow(tail, page, page);
        free(tail);
        return -ENOMEM;
    }
    extent_narrow(tail, page, extent->first + extent->pages);
    extent_narrow(extent, extent->first, page);
    return 0;
}

int extents_cut(struct extent_list *list, uint64_t start, uint64_t end, struct extent_list *taken)
{
    size_t from, to;

    if (split(list, start) < 0 || split(list, end) < 0)
        return -ENOMEM;
    from = extents_search(list, start);
    to = extents_search(list, end - 1);
    if (to < list->count && list->extents[to]->start < end)
        to++;
    if (extents_insert(taken, 0, list->extents + from, to - from) < 0)
        return -ENOMEM;
    memmove(list->extents + from, list->extents + to, (list->count - to) * sizeof(*list->extents));
    list->count -= to - from;
    return 0;
}

static int is_mapped(const struct extent *extent, uint64_t start, uint64_t end)
{
    unsigned first = extent->first, beyond = extent->first + extent->pages;

    if (start > extent->start)
        first += (unsigned)((start - extent->start) / STREAM_PAGE);
    if (end < extent_end(extent))
        beyond -= (unsigned)((extent_end(extent) - end) / STREAM_PAGE);
    for (unsigned word = 0; word < CHUNK_WORDS; word++)
        if (extent->mapped[word] & bits_of(word, first, beyond))
            return 1;
    return 0;
}

bool extents_occupied(const struct extent_list *list, uint64_t start, uint64_t end)
{
    for (size_t at = extents_search(list, start); at < list->count && list->extents[at]->start < end; at++)
        if (is_mapped(list->extents[at], start, end))
            return 1;
    return 0;
}

void extent_remove(_Atomic uint64_t *left, struct extent *extent, uint64_t start, uint64_t end)
{
    struct claim claim;

    if (start < extent->start)
        start = extent->start;
    while (start < end && extent_claim(extent, start, CHUNK_PAGES, &claim)) {
        uint64_t beyond = claim.address < end ? (end - claim.address) / STREAM_PAGE : 0;

        start = claim.address + (uint64_t)claim.count * STREAM_PAGE;
        claim_finish(left, &claim, claim.count < beyond ? claim.count : (unsigned)beyond);
    }
}

void extents_remove(_Atomic uint64_t *left, struct extent_list *list, uint64_t start, uint64_t end)
{
    for (size_t at = extents_search(list, start); at < list->count && list->extents[at]->start < end; at++)
        extent_remove(left, list->extents[at], start, end);
}

/* The bits of the first run of ones at or behind `bit`, at most `limit`. */
static uint64_t first_run(uint64_t word, unsigned bit, unsigned limit)
{
    uint64_t run, ahead = word & ~UINT64_C(0) << bit;
    unsigned start, length;

    if (!ahead)
        return 0;
    start = (unsigned)__builtin_ctzll(ahead);
    run = ~(ahead >> start);
    length = run ? (unsigned)__builtin_ctzll(run) : 64;
    if (length > limit)
        length = limit;
    return (length == 64 ? ~UINT64_C(0) : (ONE << length) - 1) << start;
}

/* Of claimed pages those up to the first gap whose contents are here; the others are given back. */
static uint64_t keep_here(struct extent *extent, unsigned word, uint64_t claimed)
{
    uint64_t run = first_run(claimed & ~atomic_load(&extent->chunk->missing[word]), 0, 64);

    if (claimed & ~run)
        atomic_fetch_or(&extent->todo[word], claimed & ~run);
    return run;
}

static unsigned claim_run(struct extent *extent, uint64_t address, unsigned limit, struct claim *claim, bool here)
{
    unsigned page = extent->first, end = extent->first + extent->pages;

    if (address > extent->start)
        page += (unsigned)((address - extent->start) / STREAM_PAGE);
    while (page < end) {
        unsigned word = page / 64;
        uint64_t wanted = first_run(atomic_load(&extent->todo[word]), page % 64, limit);
        uint64_t mine = wanted ? atomic_fetch_and(&extent->todo[word], ~wanted) & wanted : 0;
        uint64_t run = first_run(mine, 0, 64);

        if (mine != run) /* somebody took pages from the middle */
            atomic_fetch_or(&extent->todo[word], mine & ~run);
        if (run && here) {
            unsigned beyond = 64 - (unsigned)__builtin_clzll(run);

            if (!(run = keep_here(extent, word, run))) {
                page = word * 64 + beyond;
                continue;
            }
        }
        if (run) {
            page = word * 64 + (unsigned)__builtin_ctzll(run);
            *claim = (struct claim){extent, extent->start + (uint64_t)(page - extent->first) * STREAM_PAGE, page,
                                    (unsigned)__builtin_popcountll(run)};
            return claim->count;
        }
        if (!wanted)
            page = (word + 1) * 64;
    }
    return 0;
}

unsigned extent_claim(struct extent *extent, uint64_t address, unsigned limit, struct claim *claim)
{
    return claim_run(extent, address, limit, claim, false);
}

unsigned extent_claim_here(struct extent *extent, uint64_t address, unsigned limit, struct claim *claim)
{
    return claim_run(extent, address, limit, claim, true);
}

int extent_lacks(const struct extent *extent, uint64_t address)
{
    unsigned page = extent->first + (unsigned)((address - extent->start) / STREAM_PAGE);

    return atomic_load(&extent->todo[page / 64]) >> page % 64 & 1 ? (int)page : -1;
}

const uint8_t *claim_bytes(const struct claim *claim)
{
    return claim->extent->chunk->bytes + (size_t)claim->page * STREAM_PAGE;
}

void claim_finish(_Atomic uint64_t *left, struct claim *claim, unsigned count)
{
    struct extent *extent = claim->extent;

    for (unsigned page = claim->page + count; page < claim->page + claim->count; page++)
        atomic_fetch_or(&extent->todo[page / 64], ONE << page % 64);
    if (!count)
        return;
    atomic_fetch_sub(left, count);
    if (atomic_fetch_sub(&extent->left, count) == count) {
        chunk_put(extent->chunk);
        extent->chunk = NULL;
    }
}

void claim_unmapped(const struct claim *claim, unsigned n)
{
    unsigned page = claim->page + n;

    atomic_fetch_and(&claim->extent->mapped[page / 64], ~(ONE << page % 64));
}

int extents_append(struct extent_list *list, struct extent *extent)
{
    return extents_insert(list, list->count, &extent, 1);
}

int extents_copy(_Atomic uint64_t *left, struct extent_list *to, const struct extent_list *from)
{
    if (extents_reserve(to, from->count) < 0)
        return -ENOMEM;
    for (size_t i = 0; i < from->count; i++) {
        struct extent *copy = extent_copy(from->extents[i]);

        if (!copy)
            return -ENOMEM;
        to->extents[to->count++] = copy;
        *left += copy->left;
    }
    return 0;
}
