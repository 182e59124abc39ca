/*
 * A move between hosts, as the boards of the two carry it out: each stands in for the other side towards its own tile.
 *
 * Invariant: at the source the board never swaps the location entry before COMMITTED; at the destination only the tile
 * swaps it for itself, once, and only the board against it, when the move is called off. Of the two one succeeds.
 */
#ifndef WHERRY_MANYCORE_BOARD_MIRROR_H
#define WHERRY_MANYCORE_BOARD_MIRROR_H

#include "record.h"

/* Handles START, MIGRATE, GO, COMMITTED and ABORT. */
void mirror_init(struct mirror *mirror, struct relay *relay, const struct passage *passages);
/* Frames that the two hosts exchange, where they are for: OFFER, WANT, PAGES, PIECE, STATE, RUNS. */
void mirror_handle(struct mirror *mirror, const struct frame_head *head, const uint8_t *payload);
/* Tells the other sides what our tiles have written. */
void mirror_serve(struct mirror *mirror);
/* The number belongs to another process from now on. */
void mirror_clear(struct mirror *mirror, uint32_t process);

#endif
