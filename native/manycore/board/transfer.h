/*
 * Moves of processes between hosts, and starts on other hosts: the leader's part (frames.h). It forwards the frames of
 * the two hosts, has the relay hold the parcels for the process meanwhile, and decides.
 *
 * Invariant: a process has one owner here, changed by the first READY of a move that has not been called off; frames
 * of a move that was called off or has ended are ignored, because their serial number is not the last.
 */
#ifndef WHERRY_MANYCORE_BOARD_TRANSFER_H
#define WHERRY_MANYCORE_BOARD_TRANSFER_H

#include "mirror.h"

struct transfer {
    struct net *net;
    struct relay *relay;
    struct mirror *mirror;
    struct window *window;
    struct passage passages[PROCESS_MAX]; /* the leader */
};

/* Handles READY, REFUSED, MOVED and, for the two sides of a move, OFFER to RUNS. */
void transfer_init(struct transfer *transfer, struct mirror *mirror);
/* A move that concerns another host, or a start there. */
void transfer_ask(struct transfer *transfer, struct move *move);
void transfer_start(struct transfer *transfer, uint32_t process, uint32_t tile, const struct uarea *area,
                    const uint8_t *image);
/* A move between this host and another was called off here. */
void transfer_ended(struct transfer *transfer, const struct move *move);
/*
 * A process runs at the leader's own host, and its source has been told so; if the source is gone, the move ends here.
 */
void transfer_arrived(struct transfer *transfer, uint32_t process);
bool transfer_is_moving(const struct transfer *transfer, uint32_t process);
/* A process on its way has lost its owner, or a host is gone. */
void transfer_owner_lost(struct transfer *transfer, uint32_t process);
void transfer_host_gone(struct transfer *transfer, uint32_t host);

#endif
