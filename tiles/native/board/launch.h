/* Starts programs on the tiles of all hosts. */
#ifndef WHERRY_MANYCORE_BOARD_LAUNCH_H
#define WHERRY_MANYCORE_BOARD_LAUNCH_H

#include "board.h"

/*
 * Starts a program as so many ranks; `tile` NO_TILE is any free one for each. Returns 0 and the processes, or negative
 * errno and the reason in `why`; nothing has been started then.
 */
int launch_program(struct board *board, uint32_t tile, uint32_t ranks, int argc, char *const *argv,
                   uint32_t processes[TILE_MAX], char *why, size_t room);

#endif
