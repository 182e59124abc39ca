/*
 * Each page that a restored process lacks: the page of the cache, and the address to which it belongs.
 *
 *   process   ....[ extent )[ extent )......[ extent )....      by address; each lies in one chunk of the cache
 *                    |          |              |
 *   chunk          pages first .. first + pages, of which `todo` marks the pages that the process lacks
 *
 * It begins as the pages that arrived and changes by the events of the userfaultfd: a fork copies it, mremap moves a
 * part, munmap takes a part away, MADV_DONTNEED makes it zero. Filled pages stay in it, as it shows which addresses are
 * mapped.
 *
 * **The order of events.** The kernel changes the mappings first, and two threads may then report the other way round:
 * one moves A to B or unmaps it, another one X to A, which was just free, and "X to A" is read first. So, until no
 * event is under way (address_map_resolve_events):
 *   - A move onto a mapping that must still exist is *held* until an event ends that mapping.
 *   - A move away from an address takes nothing along that arrived at a higher address meanwhile.
 *   - An extent that arrived meanwhile and is unmapped is *unconfirmed*: the kernel is asked at the end whether it is
 *     mapped.
 *   - The munmap that the kernel reports after each move, for the old address, is *expected* and does nothing.
 * Nobody fills while events of a map are pending. Threads that know of each other's changes report in order anyway.
 */
#ifndef WHERRY_PAGER_ADDRESS_MAP_H
#define WHERRY_PAGER_ADDRESS_MAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "extent.h"

enum { EXPECTED_MAX = 32 };

struct held_move;

struct address_map {
    struct extent_list here;
    struct held_move *held; /* oldest first */
    struct extent_list unconfirmed;
    uint64_t generation;
    bool events_pending;
    struct {
        uint64_t start, end;
    } expected[EXPECTED_MAX];
    unsigned expected_count;
    _Atomic uint64_t left; /* pages, held and unconfirmed ones too */
};

void address_map_free(struct address_map *map);
/* Takes the reference to the chunk over, also when it fails. These return 0 or -ENOMEM. */
int address_map_add(struct address_map *map, struct chunk *chunk, const uint64_t present[CHUNK_WORDS], int recent);
/* `to` is empty. Events may be pending there too, but nothing is held: no thread of the child is in a system call. */
int address_map_fork(struct address_map *to, const struct address_map *from);
int address_map_remap(struct address_map *map, uint64_t from, uint64_t to, uint64_t length);
int address_map_unmap(struct address_map *map, uint64_t start, uint64_t end);
void address_map_remove(struct address_map *map, uint64_t start, uint64_t end);

/* No event is under way, and the map has been given all. `is_mapped` asks the kernel about an address. */
int address_map_resolve_events(struct address_map *map, bool (*is_mapped)(void *context, uint64_t address),
                               void *context);

/* The extent that the address lies in, or NULL. */
struct extent *address_map_find(const struct address_map *map, uint64_t address);
/* The first extent at or behind the address that lacks pages, of all or of the recent ones. NULL: none. */
struct extent *address_map_next(const struct address_map *map, uint64_t address, int recent);

#endif
