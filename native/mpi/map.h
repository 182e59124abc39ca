/*
 * map: at which site each rank of MPI_COMM_WORLD is, as far as this one has been informed.
 *
 * It begins with the environment: with WHERRY_MPI_SITES=0x6,1x6 ranks 0 to 5 are at one site and the next six at
 * another one. When a node has moved to another site, root writes a newer map into memory of this process, which
 * `wherry_mpi_map` names (src/wherry/node/rank_sites.py has the same layout): two places, of which the map of an epoch
 * takes the one of its parity, so the one before stays whole. Invariants: a map is taken by copy, and only if its check
 * proves it whole and its epoch is higher than that of the present one; ranks may have got different ones at any time,
 * so actions that depend on a map are agreed on by messages (levels.c).
 */
#ifndef WHERRY_MPI_MAP_H
#define WHERRY_MPI_MAP_H

#include "hidden.h"
#include "library.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAP_MAGIC "wherry: rank map"

/* As ranks send it to each other. */
struct map {
    uint64_t epoch;   /* 0: the launcher's */
    uint16_t sites[]; /* by rank of MPI_COMM_WORLD */
};

/* A place for a map of root's. */
struct told {
    uint64_t epoch, check;
    uint16_t sites[];
};

/* Behind the two places. */
struct state {
    uint64_t ranks, used; /* of a map; the epoch that a communicator has adopted last */
};

extern int map_size HIDDEN; /* ranks */
/* The check of the launcher's map, as this rank got it: it distinguishes it from others. */
extern uint64_t map_first_check HIDDEN;
/* Memory for a map that comes from another rank. */
extern struct map *map_incoming HIDDEN;

/* Reads the launcher's map, and lets root tell of newer ones. False when it is none for so many ranks, or there is no
 * memory. */
bool map_begin(const char *text, int size) HIDDEN;
/* The newest map that this rank has got. It changes with the next call of this, or of map_take(). */
const struct map *map_newest(void) HIDDEN;
/* A check that distinguishes two maps: of the epoch and all sites. */
uint64_t map_check(const struct map *map) HIDDEN;
/* Whether the launcher's map has these ranks of MPI_COMM_WORLD (NULL: the first ones) at several sites. False: also when
 * one of them is no rank of it. */
bool map_first_parts(int size, const int *world) HIDDEN;
/* Of another rank's map. */
void map_take(const struct map *other) HIDDEN;

/* A communicator goes by the map of this epoch now, for observers. */
void map_use(uint64_t epoch) HIDDEN;

static inline size_t map_bytes(void)
{
    return (sizeof(struct map) + sizeof(uint16_t) * (size_t)map_size + 7) / 8 * 8;
}

#endif
