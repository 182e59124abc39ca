/*
 * Fills objects (objects.h) at the destination: copies their pages into the memory that CRIU has made for them, before
 * the restored processes run.
 *
 *   table: object NUMBER p|s PLACES
 *          INSIDE START END OFFSET WRITABLE     each
 *   cache: (NUMBER, offset / 2 MiB) -> chunk    written by several threads, a chunk at a time
 *
 * Pages are written through a place where the object is mapped for writing, so that they count as the node's memory; an
 * object without such a place is written into the file itself, and counts as ours.
 */
#ifndef WHERRY_PAGER_OBJECT_FILL_H
#define WHERRY_PAGER_OBJECT_FILL_H

#include <stddef.h>
#include <stdint.h>

#include "cache.h"

struct object_totals {
    size_t objects;
    uint64_t bytes;
};

/* `tasks` is the cgroup.procs of the restored processes. 0 or negative errno with `why` in words. */
int objects_fill(struct cache *cache, const char *tasks, struct object_totals *totals, char *why, size_t size);

#endif
