/*
 * bundles: the blocks of all ranks, at each of them, which cross the link in one bundle for each site.
 */
#ifndef WHERRY_MPI_BUNDLES_H
#define WHERRY_MPI_BUNDLES_H

#include "blocks.h"

#include <stdint.h>

/* Bytes of all ranks, and by place in the order of sites how many there are before them; -1: too many for us. */
int64_t bundles_lay_out(const struct levels *at, const struct blocks *blocks, int *lengths, int *places) HIDDEN;
/* An allgather of blocks that are laid out so, with the leaders' offers. */
int bundles_gather(struct levels *at, word sent, int count, word type, const struct blocks *blocks, const int *lengths,
                   const int *places) HIDDEN;
/* The same of bytes: so many of each rank, at such places. */
int bundles_gather_bytes(struct levels *at, const char *mine, char *all, const int *counts,
                         const int *displacements) HIDDEN;

#endif
