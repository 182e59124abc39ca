/* A move to another host, at its source; see mirror.h. */
#ifndef WHERRY_MANYCORE_BOARD_DEPARTURE_H
#define WHERRY_MANYCORE_BOARD_DEPARTURE_H

#include "record.h"

/* The leader asks for the process. */
void departure_begin(struct mirror *mirror, uint32_t process, const struct order *order);
/* What the destination has written into its record; no more is believed than the record's own rules allow. */
void departure_want(struct mirror *mirror, uint32_t process, const struct want *want);
/* Sends what our tile has written into the record. */
void departure_serve(struct mirror *mirror, struct move *move);
void departure_committed(struct mirror *mirror, uint32_t process);
void departure_runs(struct mirror *mirror, uint32_t process, const struct runs *runs);
void departure_abort(struct mirror *mirror, uint32_t process, const struct order *order);

#endif
