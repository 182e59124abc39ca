/* Clients' commands; main.c lists them. */
#ifndef WHERRY_MANYCORE_BOARD_COMMANDS_H
#define WHERRY_MANYCORE_BOARD_COMMANDS_H

#include "board.h"

/* Reads from a client and executes its command when that is complete. */
void commands_read(struct board *board, struct client *client);

#endif
