/* A move from another host, at its destination, and the start of a process for the leader; see move_proxy.h. */
#ifndef WHERRY_MANYCORE_BOARD_MIGRATION_INCOMING_MOVE_H
#define WHERRY_MANYCORE_BOARD_MIGRATION_INCOMING_MOVE_H

#include "move_record.h"

enum incoming_end {
    INCOMING_NOT,   /* the move is not from another host, or failed: its end is reported like any other */
    INCOMING_WAITS, /* it is looked after here */
    INCOMING_TOLD,  /* RUNS was sent to the source: the record is free */
};

void incoming_offer(struct move_proxy *proxy, uint32_t process, const struct offer *offer);
void incoming_pages(struct move_proxy *proxy, uint32_t process, const uint8_t *payload, size_t size);
void incoming_piece(struct move_proxy *proxy, uint32_t process, const uint8_t *payload, size_t size);
void incoming_state(struct move_proxy *proxy, uint32_t process, const uint8_t *payload, size_t size);
/* A process that the leader starts here: there is no move. */
void incoming_start(struct move_proxy *proxy, uint32_t process, const uint8_t *payload, size_t size);
/* Sends the other side our tile's changes of the record. */
void incoming_serve(struct move_proxy *proxy, struct move *move);
/*
 * Whether an incoming process runs here already. The leader is informed now, if it has not been: before any message
 * of the process.
 */
bool incoming_has_come(struct move_proxy *proxy, uint32_t process);
void incoming_go(struct move_proxy *proxy, uint32_t process);
void incoming_abort(struct move_proxy *proxy, uint32_t process, const struct order *order);
enum incoming_end incoming_finish(struct move_proxy *proxy, struct move *move, bool aborted);

#endif
