/*
 * A move between hosts, as the boards of the two carry it out: towards its own tile each acts for the other side.
 *
 * Invariant: at the source the board never swaps the location entry before COMMITTED; at the destination only the tile
 * swaps it for itself, once, and only the board against it, when the move is called off. Of the two one succeeds.
 */
#ifndef WHERRY_MANYCORE_BOARD_MIGRATION_MOVE_PROXY_H
#define WHERRY_MANYCORE_BOARD_MIGRATION_MOVE_PROXY_H

#include "move_record.h"

/* Handles START, MIGRATE, GO, COMMITTED and ABORT. */
void proxy_init(struct move_proxy *proxy, struct parcel_router *router, const struct coordinated_move *coordinated);
/* Frames between the two hosts, at the host that they are for: OFFER, WANT, PAGES, PIECE, STATE, RUNS. */
void proxy_handle(struct move_proxy *proxy, const struct frame_head *head, const uint8_t *payload);
/* Sends the other sides our tiles' changes of the records. */
void proxy_serve(struct move_proxy *proxy);
/* The number belongs to another process from now on. */
void proxy_clear(struct move_proxy *proxy, uint32_t process);

#endif
