/*
 * The record of a move between hosts, of which each of the two hosts has one: the board here copies the other
 * side's changes into it, so that a tile finds the other side as on one host (protocol.h, migration/move_engine.h).
 */
#ifndef WHERRY_MANYCORE_BOARD_MIGRATION_MOVE_RECORD_H
#define WHERRY_MANYCORE_BOARD_MIGRATION_MOVE_RECORD_H

#include "coordinated_move.h"
#include "process_state.h"

/* The part of a move's record that the other side already has, and when that last made progress. */
struct peer_view {
    uint32_t step, wanted, scanned, allow, sent, taken;
    int64_t since;
};

struct move_proxy {
    struct net *net;
    struct parcel_router *router;
    struct shared_memory *shared;
    const struct coordinated_move *coordinated;          /* the leader's, of each process */
    struct peer_view peer_views[TILE_MAX];       /* of each tile: of the move to it from or to a tile here */
    bool mine[PROCESS_MAX];                  /* it was here when we last looked */
    struct incoming_move *incoming[PROCESS_MAX];   /* a destination: from OFFER to GO or ABORT */
    struct snapshot *snapshots[PROCESS_MAX]; /* an owner: the sent part of the endpoint, until COMMITTED or ABORT */
};

bool record_is_outgoing(const struct move_proxy *proxy, const struct move *move);
bool record_is_incoming(const struct move_proxy *proxy, const struct move *move);
bool record_is_unused(const struct move *move);
/* Whether tiles may be asked for a move in this mode between hosts. */
bool record_is_mode(uint32_t mode);
struct move *record_find(struct move_proxy *proxy, uint32_t process, uint32_t serial, bool incoming);
struct peer_view *record_peer_view(struct move_proxy *proxy, const struct move *move);
/* Changes the step, if it is `from`, and rings our tile. */
void record_change_step(struct move_proxy *proxy, struct move *move, uint32_t from, uint32_t to);
/* Ends a move that is under way, for `why`. */
void record_abort(struct move_proxy *proxy, struct move *move, const char *why);
void record_refuse(struct move_proxy *proxy, uint32_t process, uint32_t serial, uint32_t to, const char *why);
void record_begin(struct move_proxy *proxy, struct move *move, uint32_t process, uint32_t serial, uint32_t from,
                  uint32_t to, uint32_t mode);
/* Reads every endpoint once: no page faults while a process is frozen. */
void record_touch_endpoints(const struct move_proxy *proxy);
/* NULL: none any more. The old one is freed. */
void record_set_incoming(struct move_proxy *proxy, uint32_t process, struct incoming_move *incoming);
void record_set_snapshot(struct move_proxy *proxy, uint32_t process, struct snapshot *snapshot);

#endif
