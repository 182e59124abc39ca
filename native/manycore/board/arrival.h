/* A move from another host, at its destination, and the start of a process for the leader; see mirror.h. */
#ifndef WHERRY_MANYCORE_BOARD_ARRIVAL_H
#define WHERRY_MANYCORE_BOARD_ARRIVAL_H

#include "record.h"

enum arrival_end {
    ARRIVAL_NOT,   /* the move does not come from another host, or came to nothing: its end is told as any other's */
    ARRIVAL_WAITS, /* it is looked after here */
    ARRIVAL_TOLD,  /* the source has been told since when the process runs here: the record is free */
};

void arrival_offer(struct mirror *mirror, uint32_t process, const struct offer *offer);
void arrival_pages(struct mirror *mirror, uint32_t process, const uint8_t *payload, size_t size);
void arrival_piece(struct mirror *mirror, uint32_t process, const uint8_t *payload, size_t size);
void arrival_state(struct mirror *mirror, uint32_t process, const uint8_t *payload, size_t size);
/* A process that the leader starts here: there is no move. */
void arrival_start(struct mirror *mirror, uint32_t process, const uint8_t *payload, size_t size);
/* Tells the other side what our tile has written into the record. */
void arrival_serve(struct mirror *mirror, struct move *move);
/*
 * Whether an arrival runs here already. The leader is told now, if it has not been: before anything that the process
 * says.
 */
bool arrival_has_come(struct mirror *mirror, uint32_t process);
void arrival_go(struct mirror *mirror, uint32_t process);
void arrival_abort(struct mirror *mirror, uint32_t process, const struct order *order);
enum arrival_end arrival_finish(struct mirror *mirror, struct move *move, bool aborted);

#endif
