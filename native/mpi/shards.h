/*
 * shards: large bcasts and allreduces, of which each rank of a site takes a share over the link.
 *
 * So they go by as many connections as a site has ranks, and within a site each rank sends and gets the whole once, not
 * its leader the whole for all. All sites have the same number of ranks, and the ranks of one number are peers.
 */
#ifndef WHERRY_MPI_SHARDS_H
#define WHERRY_MPI_SHARDS_H

#include "sites.h"

/* Whether it is large enough, and the sites are so. The same at all ranks. */
bool shards_fit(const struct levels *at, int64_t elements, int64_t bytes) HIDDEN;
int shards_bcast(const struct levels *at, word buffer, int64_t count, word type, int64_t bytes, int root) HIDDEN;
/* All of it, with the leaders' offers. */
int shards_allreduce(struct levels *at, word sent, word got, int64_t count, word type, word operator) HIDDEN;

#endif
