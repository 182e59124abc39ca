/* A move to another host, at its source; see move_proxy.h. */
#ifndef WHERRY_MANYCORE_BOARD_MIGRATION_OUTGOING_MOVE_H
#define WHERRY_MANYCORE_BOARD_MIGRATION_OUTGOING_MOVE_H

#include "move_record.h"

/* The leader asks for the process. */
void outgoing_begin(struct move_proxy *proxy, uint32_t process, const struct order *order);
/* Takes over the destination's changes of its record, as far as the record's own rules allow them. */
void outgoing_want(struct move_proxy *proxy, uint32_t process, const struct want *want);
/* Sends our tile's changes of the record. */
void outgoing_serve(struct move_proxy *proxy, struct move *move);
void outgoing_committed(struct move_proxy *proxy, uint32_t process);
void outgoing_runs(struct move_proxy *proxy, uint32_t process, const struct runs *runs);
void outgoing_abort(struct move_proxy *proxy, uint32_t process, const struct order *order);

#endif
