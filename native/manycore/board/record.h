/*
 * The record of a move between hosts, of which each of the two hosts has one: the board writes into it here what the
 * other side has written into its own, so that a tile finds the other side as on one host (frames.h, ../moving.h).
 */
#ifndef WHERRY_MANYCORE_BOARD_RECORD_H
#define WHERRY_MANYCORE_BOARD_RECORD_H

#include "passage.h"
#include "state.h"

/* What our board has told the other side of a move's record, and when that last made progress. */
struct mirrored {
    uint32_t step, wanted, scanned, allow, sent, taken;
    int64_t since;
};

struct mirror {
    struct net *net;
    struct relay *relay;
    struct window *window;
    const struct passage *passages;          /* the leader's, of each process */
    struct mirrored mirrors[TILE_MAX];       /* of each tile: of the move to it from or to a tile here */
    bool mine[PROCESS_MAX];                  /* it was here when we last looked */
    struct arrival *arriving[PROCESS_MAX];   /* a destination: from OFFER to GO or ABORT */
    struct snapshot *snapshots[PROCESS_MAX]; /* an owner: what was sent of the endpoint, until COMMITTED or ABORT */
};

bool record_is_departure(const struct mirror *mirror, const struct move *move);
bool record_is_arrival(const struct mirror *mirror, const struct move *move);
bool record_is_unused(const struct move *move);
/* Whether tiles may be asked for a move in this mode between hosts. */
bool record_is_mode(uint32_t mode);
struct move *record_find(struct mirror *mirror, uint32_t process, uint32_t serial, bool arrival);
struct mirrored *record_mirrored(struct mirror *mirror, const struct move *move);
/* Changes the step, if it is `from`, and rings our tile. */
void record_change_step(struct mirror *mirror, struct move *move, uint32_t from, uint32_t to);
/* Ends a move that is under way, for `why`. */
void record_abort(struct mirror *mirror, struct move *move, const char *why);
void record_refuse(struct mirror *mirror, uint32_t process, uint32_t serial, uint32_t to, const char *why);
void record_begin(struct mirror *mirror, struct move *move, uint32_t process, uint32_t serial, uint32_t from,
                  uint32_t to, uint32_t mode);
/* Reads every endpoint once: no page faults while a process is frozen. */
void record_touch_endpoints(const struct mirror *mirror);
/* NULL: none any more. The old one is freed. */
void record_set_arrival(struct mirror *mirror, uint32_t process, struct arrival *arrival);
void record_set_snapshot(struct mirror *mirror, uint32_t process, struct snapshot *snapshot);

#endif
