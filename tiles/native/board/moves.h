/*
 * Moves as the name server sees them: it refuses impossible moves, reserves a slot, asks, and reports. A tile has at
 * most one move towards it; the record is that move's from ASKED until its end is reported and no tile works with it.
 */
#ifndef WHERRY_MANYCORE_BOARD_MOVES_H
#define WHERRY_MANYCORE_BOARD_MOVES_H

#include "migration/move_coordinator.h"

/* The leader: a move has ended; `done` or failed. */
typedef void move_ended_handler(void *context, const struct move *move, bool done);

struct moves {
    struct net *net;
    struct move_proxy *proxy;
    struct move_coordinator *coordinator;
    struct shared_memory *shared;
    bool wished[TILE_MAX]; /* the move to this tile was the process's own wish */
    int64_t aborted[TILE_MAX]; /* when the move to this tile was seen to be aborted, with the record still in hand */
    move_ended_handler *ended;
    void *context;
};

/* Handles MOVE, WISH and ANSWER. */
void moves_init(struct moves *moves, struct move_coordinator *coordinator, move_ended_handler *ended, void *context);
/* Asks for a move. Returns 0 or negative errno with the reason in `why`. */
int moves_ask(struct moves *moves, uint32_t process, uint32_t to, uint32_t mode, char *why, size_t room);
/* Reports the moves that have ended, and asks for moves that processes wish. */
void moves_serve(struct moves *moves);
/* Whether there is a move whose end has not been reported yet. */
bool moves_is_under_way(const struct moves *moves);
/* The number of a mode, or -EINVAL; and its name. */
int moves_mode(const char *name);
const char *moves_mode_name(uint32_t mode);

#endif
