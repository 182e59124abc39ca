/*
 * Runs of pages of a process, each within one chunk of the cache (address_map.h).
 *
 * A filler claims pages and gives them back or is done with them, side by side with others; all else is for one.
 * `left` counts the pages that a process lacks, in all its extents.
 */
#ifndef WHERRY_PAGER_EXTENT_H
#define WHERRY_PAGER_EXTENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cache.h"


struct extent {
    uint64_t start;
    uint64_t moved_to;         /* where the move went that brought it, */
    uint64_t generation;       /* and since which resolution of events */
    uint16_t first, pages;
    uint8_t recent;            /* came in the last two passes: likely to be needed first */
    _Atomic uint32_t left;
    struct chunk *chunk;       /* while something is left */
    _Atomic uint64_t todo[CHUNK_WORDS];
    _Atomic uint64_t mapped[CHUNK_WORDS]; /* pages that the process must have mapped; those filled in too */
};

struct extent_list {
    struct extent **extents;
    size_t count, capacity;
};

/* Pages of one extent that are being filled by the filler that claimed them. */
struct claim {
    struct extent *extent;
    uint64_t address;
    unsigned page, count; /* of the chunk */
};

uint64_t extent_end(const struct extent *extent);
/* Up to `limit` adjacent pages that nobody has claimed, the first at or behind the address. The number. */
unsigned extent_claim(struct extent *extent, uint64_t address, unsigned limit, struct claim *claim);
/* The same, of pages whose contents are here. */
unsigned extent_claim_here(struct extent *extent, uint64_t address, unsigned limit, struct claim *claim);
/* The page of the chunk that the process lacks at this address; -1: none. Nobody has claimed any. */
int extent_lacks(const struct extent *extent, uint64_t address);
const uint8_t *claim_bytes(const struct claim *claim);
/* The first `count` of them are there, or can never be; the others are given back. */
void claim_finish(_Atomic uint64_t *left, struct claim *claim, unsigned count);
/* The kernel has no mapping at this page, the n-th of the claim. */
void claim_unmapped(const struct claim *claim, unsigned n);

/* Lists are by address, except where extents are appended. These return 0 or -ENOMEM. */
void extents_free(_Atomic uint64_t *left, struct extent_list *list);
void extent_free(_Atomic uint64_t *left, struct extent *extent);
/* The first extent that ends behind the address. */
size_t extents_search(const struct extent_list *list, uint64_t address);
int extents_insert(struct extent_list *list, size_t at, struct extent *const *extents, size_t count);
int extents_append(struct extent_list *list, struct extent *extent);
/* Moves the extents in the range to a list of its own, which is empty before. */
int extents_cut(struct extent_list *list, uint64_t start, uint64_t end, struct extent_list *taken);
/* Adds copies. */
int extents_copy(_Atomic uint64_t *left, struct extent_list *to, const struct extent_list *from);
/* Nothing is left in the range, which stays mapped. */
void extent_remove(_Atomic uint64_t *left, struct extent *extent, uint64_t start, uint64_t end);
void extents_remove(_Atomic uint64_t *left, struct extent_list *list, uint64_t start, uint64_t end);
/* Whether a page in the range must be mapped. */
bool extents_occupied(const struct extent_list *list, uint64_t start, uint64_t end);

#endif
