/*
 * A tile in a move (source.c, destination.c), and a process that exchanges numbered messages with the others.
 */
#ifndef WHERRY_TEST_SIM_TILE_H
#define WHERRY_TEST_SIM_TILE_H

#include "sim.h"

/* The process's counts, in its own memory, so that they move with it. */
struct memory { uint32_t sent[PROCESSES + 1], received[PROCESSES + 1]; };

struct memory *sim_memory(const struct tile *tile);
/* One step of a tile that is alive. */
void sim_step_tile(struct tile *tile);

#endif
