/*
 * sites: common parts of the collectives by sites.
 *
 * Everything that decides whether and how one is done is the same at all ranks of its communicator, or they would
 * wait for each other for ever: the map that they go by, the operator, the size in bytes. (Counts and types may
 * differ between ranks, their product may not.)
 */
#ifndef WHERRY_MPI_SITES_H
#define WHERRY_MPI_SITES_H

#include "levels.h"
#include "objects.h"

/* The levels of a communicator, also if its ranks are all at one site; NULL: it has none. At the begin of each
 * collective. */
struct levels *sites_known(word handle) HIDDEN;
/* The same; NULL: the library does its collectives. */
struct levels *sites_begin(word handle) HIDDEN;
/* The same with a root; a wrong one is the library's to complain of. */
struct levels *sites_begin_rooted(word handle, int root) HIDDEN;
/* For a collective that must not wait for another rank: the communicator, if its ranks are at several sites by the map
 * that they go by, or as long as they have not agreed on one, by that of the launcher. NULL: they are not, or are two. */
const struct communicator *sites_parted(word handle) HIDDEN;
/* It is done by us. */
void sites_count(void) HIDDEN;
/* The same for a collective whose way is chosen: false when the library's is. */
bool sites_choose(const struct levels *at, enum operation operation, int64_t bytes) HIDDEN;
/* Ends it. Of an error the program's handler learns, as it does of the library's own. */
bool sites_end(const struct levels *at, int *result, int error) HIDDEN;

/* Whether an operator may be applied site by site, on elements of so many bytes together. */
bool sites_may_reduce(const struct levels *at, int64_t bytes, word operator) HIDDEN;
/* Of each site memory for elements, but for the caller's own: NULL when there is none. */
struct room *sites_rooms(const struct levels *at, int64_t count, word type) HIDDEN;
void sites_free(const struct levels *at, struct room *rooms) HIDDEN;
/* Combines the elements of all sites, in their order, into `own`; `offset` is from where each begins in its room. */
int sites_combine(const struct levels *at, word own, const struct room *rooms, ptrdiff_t offset, int64_t count,
                  word type, word operator) HIDDEN;

#endif
