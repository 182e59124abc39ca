/*
 * Common to kernel calls: their words, the program's memory, waiting, and completion. The tile's lock is held.
 */
#ifndef WHERRY_MANYCORE_KERNEL_KERNEL_CALL_H
#define WHERRY_MANYCORE_KERNEL_KERNEL_CALL_H

#include "tile.h"

#define CALL_PARKED INT64_MIN     /* the thread waits; the call will be executed again */
#define CALL_GONE (INT64_MIN + 1) /* the thread has ended */

struct call {
    struct tile *tile;
    struct thread *thread;
    int slot, core;
    uint64_t words[5];
};

typedef int64_t call_execute_one(const struct call *call);

/* Parks the thread until sched_retry() names this kind and object; its call is then executed again. */
int64_t call_park(const struct call *call, enum wait_kind kind, uint32_t object);
/* The program's memory as the kernel sees it; NULL when the program has no such memory. */
const void *call_readable(const struct call *call, uint64_t address, uint64_t size);
void *call_writable(const struct call *call, uint64_t address, uint64_t size);
/* Completes the call of a thread with `result` and makes the thread ready. */
void call_complete(struct tile *tile, int slot, int64_t result);

#endif
