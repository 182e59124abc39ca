/* The tiles of this host as Linux processes. */
#ifndef WHERRY_MANYCORE_BOARD_TILE_PROCESSES_H
#define WHERRY_MANYCORE_BOARD_TILE_PROCESSES_H

#include "../shared/shared_memory.h"

/* Starts them and waits until they are ready. Returns 0 or negative errno. */
int tiles_start(struct shared_memory *shared, int shared_fd, int event_fd);
/* Marks tiles dead that have died: their processes are lost, their moves end. */
void tiles_reap(struct shared_memory *shared);
/* Ends all; `at_once` without giving them time to end by themselves. */
void tiles_stop(struct shared_memory *shared, bool at_once);

#endif
