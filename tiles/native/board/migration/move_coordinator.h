/*
 * Moves of processes between hosts, and starts on other hosts: the leader's part (protocol.h). It forwards the frames
 * of the two hosts, has the router hold the parcels for the process meanwhile, and decides.
 *
 * Invariant: a process has one owner here, changed by the first READY of a move that has not been called off; frames
 * of a move that was called off or has ended are ignored, because their serial number is not the last.
 */
#ifndef WHERRY_MANYCORE_BOARD_MIGRATION_MOVE_COORDINATOR_H
#define WHERRY_MANYCORE_BOARD_MIGRATION_MOVE_COORDINATOR_H

#include "move_proxy.h"

struct move_coordinator {
    struct net *net;
    struct parcel_router *router;
    struct move_proxy *proxy;
    struct shared_memory *shared;
    struct coordinated_move coordinated[PROCESS_MAX]; /* the leader */
};

/* Handles READY, REFUSED, MOVED and, for the two sides of a move, OFFER to RUNS. */
void coordinator_init(struct move_coordinator *coordinator, struct move_proxy *proxy);
/* A move that concerns another host, or a start there. */
void coordinator_ask(struct move_coordinator *coordinator, struct move *move);
void coordinator_start(struct move_coordinator *coordinator, uint32_t process, uint32_t tile,
                       const struct user_area *area, const uint8_t *image);
/* A move between this host and another was called off here. */
void coordinator_ended(struct move_coordinator *coordinator, const struct move *move);
/*
 * A process runs at the leader's own host and RUNS went to its source; if the source is gone, the move ends here.
 */
void coordinator_arrived(struct move_coordinator *coordinator, uint32_t process);
bool coordinator_is_moving(const struct move_coordinator *coordinator, uint32_t process);
/* A process on its way has lost its owner, or a host is gone. */
void coordinator_owner_lost(struct move_coordinator *coordinator, uint32_t process);
void coordinator_host_gone(struct move_coordinator *coordinator, uint32_t host);

#endif
