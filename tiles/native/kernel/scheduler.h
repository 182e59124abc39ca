/* Makes threads of a tile's process ready, and wakes cores for them. The tile's lock is held. */
#ifndef WHERRY_MANYCORE_KERNEL_SCHEDULER_H
#define WHERRY_MANYCORE_KERNEL_SCHEDULER_H

#include "tile.h"

/* Wakes idle cores for ready threads; when too few are idle, rings the master, which preempts running threads. */
void sched_wake_cores(struct tile *tile);
/*
 * Makes at most `count` threads ready that wait for `kind` (and for `object`, unless it is negative): they execute
 * their call again. Returns how many there were.
 */
int sched_retry(struct tile *tile, enum wait_kind kind, int64_t object, int count);

#endif
