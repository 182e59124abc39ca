/*
 * The network on chip: the tiles of one host are a mesh, and a message between two of them is under way for so long as
 * its hops take. It is declared (`wherry-tiles --mesh 4x4 --hop NANOSECONDS`), not found: on one machine every tile is
 * as near as any other.
 *
 *   tiles 0..7 of a host on 4x2:   0 - 1 - 2 - 3     from 0 to 6: 3 hops, first along the row, then along the column
 *                                  |   |   |   |
 *                                  4 - 5 - 6 - 7
 *
 * A message is counted, takes room and is kept in order from its sending on; only its reader must wait until it is due.
 * So a process that moves takes along the messages under way to it. Messages to the name server and between hosts
 * are never under way in the mesh.
 */
#ifndef WHERRY_MANYCORE_SHARED_MESH_H
#define WHERRY_MANYCORE_SHARED_MESH_H

#include "shared_memory.h"

#define HOP_MOST_NS 10000000 /* the largest cost of a hop */

/* Reads WIDTHxHEIGHT for tiles of which a host has `tiles`. Returns 0, or -EINVAL: it has too few places. */
int mesh_declare(struct shared_memory *shared, const char *size, uint64_t hop_ns, uint32_t tiles);
bool mesh_is_declared(const struct shared_memory *shared);
/* Hops between the tiles of two numbers on one host. */
uint32_t mesh_hops(const struct shared_memory *shared, uint32_t one, uint32_t other);
/* When a message that `from` sends now is there (CLOCK_MONOTONIC); 0: at once. */
int64_t mesh_due(struct shared_memory *shared, uint32_t from, uint32_t to);

#endif
