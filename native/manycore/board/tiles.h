/* The tiles of this host as Linux processes. */
#ifndef WHERRY_MANYCORE_BOARD_TILES_H
#define WHERRY_MANYCORE_BOARD_TILES_H

#include "../window.h"

/* Starts them and waits until they are ready. Returns 0 or negative errno. */
int tiles_start(struct window *window, int window_fd, int event_fd);
/* Marks tiles dead that have died: their processes are lost, their moves end. */
void tiles_reap(struct window *window);
/* Ends all; `at_once` without giving them time to end by themselves. */
void tiles_stop(struct window *window, bool at_once);

#endif
