/* What both sides of a move share: the record's step, the deadline, and whether the other side can still answer. */
#ifndef WHERRY_MANYCORE_FLOW_H
#define WHERRY_MANYCORE_FLOW_H

#include "tile.h"

#define RESERVED_MS 10000  /* the destination waits for the source to answer */
#define FROZEN_MS 5000     /* the source waits for the commit */
#define ERRAND_NS 1000000  /* a core polls for so long */
#define ERRAND_FAR_NS 5000000 /* asleep on the bell, when the other side is another host */
#define ROUND_MAX 8        /* of precopy: then it is frozen however many pages are left */
#define ROUND_PAGES 8      /* so few are copied while it is frozen: another round would find as many */

/* Whether the tile of this number has not died. */
bool flow_is_alive(const struct tile *tile, uint32_t index);
/* Changes the step of the move, when it is `from`, and rings the other side. */
bool flow_step(struct tile *tile, struct move *move, uint32_t from, uint32_t to);
/* Whether the other side may still leave this step: it is alive, nothing is decided, the deadline has not passed. */
bool flow_may_go_on(struct tile *tile, uint32_t step);
/* Whether the location entry still says what the move began with: no commit, no end of the process, no loss. */
bool flow_is_undecided(const struct tile *tile);
void flow_set_deadline(struct tile *tile, int ms);
/* Whether the other side is on another host, so that our board stands in for it. */
bool flow_is_far(const struct tile *tile);

#endif
