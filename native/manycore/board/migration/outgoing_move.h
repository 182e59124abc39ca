/* A move to another host, at its source; see move_proxy.h. */
#ifndef WHERRY_MANYCORE_BOARD_MIGRATION_OUTGOING_MOVE_H
#define WHERRY_MANYCORE_BOARD_MIGRATION_OUTGOING_MOVE_H

#include "move_record.h"

/* The leader asks for the process. */
void outgoing_begin(struct move_proxy *proxy, uint32_t process, const struct order *order);
/* What the destination has written into its record; no more is believed than the record's own rules allow. */
void outgoing_want(struct move_proxy *proxy, uint32_t process, const struct want *want);
/* Sends what our tile has written into the record. */
void outgoing_serve(struct move_proxy *proxy, struct move *move);
void outgoing_committed(struct move_proxy *proxy, uint32_t process);
void outgoing_runs(struct move_proxy *proxy, uint32_t process, const struct runs *runs);
void outgoing_abort(struct move_proxy *proxy, uint32_t process, const struct order *order);

#endif
