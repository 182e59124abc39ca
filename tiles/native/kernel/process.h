/* The process of a tile: it is adopted, frozen, thawed, released to another tile, or ended. */
#ifndef WHERRY_MANYCORE_KERNEL_PROCESS_H
#define WHERRY_MANYCORE_KERNEL_PROCESS_H

#include "tile.h"

/* Continues the process of a location entry that is ours. The user region is mapped. */
void process_adopt(struct tile *tile, uint32_t process, struct place place, struct move *move);
/* Forgets the process; every core is quiet. */
void process_release(struct tile *tile);
void process_freeze(struct tile *tile);
/* The same without waiting: the core that gives up the last thread continues the move. */
void process_request_freeze(struct tile *tile);
/* Has an idle core run the tasks of the move for a while. */
void process_wake_poller(struct tile *tile);
void process_thaw(struct tile *tile);
void process_end(struct tile *tile, int status, const char *why);

#endif
