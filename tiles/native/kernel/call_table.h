/* The dispatcher of kernel calls. The tile's lock is held. */
#ifndef WHERRY_MANYCORE_KERNEL_CALL_TABLE_H
#define WHERRY_MANYCORE_KERNEL_CALL_TABLE_H

#include "tile.h"

/* Executes the call of a thread. Returns false when the thread waits or has ended. */
bool call_execute(struct tile *tile, int slot, int core);
/* Whether only the master core may execute the call. */
bool call_is_for_master(uint64_t number);

#endif
