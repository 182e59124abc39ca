/*
 * A move, as the two tiles do it: the bodies of the tasks of move_graph.h.
 *
 *   name server        destination                    source
 *     ASKED  -------->  reserve (maps, touches)
 *     (precopy)         TRACKING  ----------------->   scan    } as often as it gets less
 *                       round (copies)  <-----------           }
 *                       RESERVED  ----------------->   freeze, seal
 *                       copy, check     <-----------   FROZEN
 *                       commit: swaps the location entry
 *                       adopt; DONE  -------------->   await, roll back: too late, so it releases the process
 *
 * Invariant: a tile runs the process only while the location entry names it. The source keeps the frozen process
 * until the entry names another, or it has itself swapped the entry for one of a later epoch, after which the
 * destination's swap must fail. So whichever side dies or hangs, there is one owner, or the name server, which does
 * the same swap for a tile that died, reports the process lost.
 *
 * The tasks are run by the first thread of the tile that calls move_engine_run(): the master, or a core. While a
 * process is frozen, waking threads is avoided: the core that gives up the last thread seals the User Area, and an idle
 * core of the destination, which has been polling, adopts the process and runs its first thread.
 */
#ifndef WHERRY_MANYCORE_MIGRATION_MOVE_ENGINE_H
#define WHERRY_MANYCORE_MIGRATION_MOVE_ENGINE_H

#include "move_side.h"

/*
 * Before the first core runs. `side` lives as long as the tile; idle cores poll through `tile->poll_move` from now on.
 */
void move_engine_start(struct tile *tile, struct move_side *side);
/* Runs the tasks of the tile's move as far as they go now. Any thread of the kernel, no lock held. */
void move_engine_run(struct tile *tile);
/* Whether the master has to look now and then, because the other side may be silent for ever. */
bool move_engine_is_active(struct tile *tile);

#endif
