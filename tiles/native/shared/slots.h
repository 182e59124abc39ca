/* Free tiles and slots of the shared memory. */
#ifndef WHERRY_MANYCORE_SHARED_SLOTS_H
#define WHERRY_MANYCORE_SHARED_SLOTS_H

#include "shared_memory.h"

/*
 * Whether a tile still works with the record of the last move to `to`: a tile that was stopped when the other side gave
 * up may still write into the slot.
 */
bool slots_is_in_hand(const struct shared_memory *shared, uint32_t to);
/* Whether the tile is alive, has no process and expects none. */
bool slots_is_free(struct shared_memory *shared, uint32_t tile);
/* Finds a slot that no process has and no move uses. Returns false when there is none. */
bool slots_reserve(struct shared_memory *shared, uint32_t *slot);

#endif
