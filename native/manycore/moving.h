/*
 * A move, as the two tiles do it: the bodies of the tasks of movegraph.h.
 *
 *   name server        destination                    source
 *     ASKED  -------->  reserve (maps, touches)
 *     (precopy)         TRACKING  ----------------->   scan    } as often as it gets less
 *                       round (copies)  <-----------           }
 *                       RESERVED  ----------------->   freeze, seal
 *                       copy, check     <-----------   FROZEN
 *                       commit: swaps the location entry
 *                       adopt; DONE  -------------->   await, take back: too late, so it releases the process
 *
 * Invariant: a tile runs the process only while the location entry names it. The source keeps the frozen process
 * until the entry names another, or it has itself swapped the entry for one of a later epoch, after which the
 * destination's swap must fail. So whoever dies or stays silent, there is one owner, or the name server, which does
 * the same swap for a tile that died, reports the process lost.
 *
 * The tasks are run by whichever thread of the tile comes first (moving_run): the master, or a core. While a process
 * stands, no thread is woken if it can be helped: the core that gives up the last thread seals the User Area, and an
 * idle core of the destination, which has been looking on, takes the process and runs its first thread.
 */
#ifndef WHERRY_MANYCORE_MOVING_H
#define WHERRY_MANYCORE_MOVING_H

#include "movegraph.h"
#include "tile.h"

#define RESERVED_MS 10000  /* the destination waits for the source to answer */
#define FROZEN_MS 5000     /* the source waits for the commit */
#define ERRAND_NS 1000000  /* a core looks on for so long */
#define ERRAND_FAR_NS 5000000 /* asleep on the bell, when the other side is another host */
#define ROUND_MAX 8        /* of precopy: then it is frozen however many pages are left */
#define ROUND_PAGES 8      /* so few are copied while it stands: another round would find as many */

/* Changes the step of the move, when it is `from`, and rings the other side. */
bool moving_step(struct tile *tile, struct move *move, uint32_t from, uint32_t to);
/* Whether there is still sense in waiting for the other side at this step. */
bool moving_hopes(struct tile *tile, uint32_t step);
/* Whether the location entry still says what the move began with: no commit, no end of the process, no loss. */
bool moving_is_undecided(const struct tile *tile);
void moving_set_deadline(struct tile *tile, int ms);
/* Whether the other side is played by our board, for another host. */
bool moving_is_far(const struct tile *tile);

/* give.c: the source */
task_body give_scan, give_freeze, give_seal, give_await, give_take_back;
/* take.c: the destination */
task_body take_reserve, take_round, take_copy, take_check, take_pages, take_commit, take_adopt, take_discard;
/* pieces.c: `faithful` */
task_body pieces_group, pieces_loop, pieces_is_used, pieces_put, pieces_sent, pieces_allow, pieces_place,
    pieces_received;

#endif
