/*
 * The kernel's record of a core. It lies here, beside the User Area, for the build of a tile without that separation
 * (WHERRY_TILE_MIXED): there a thread's record and a core's lie in one table, as in a kernel that has never kept them
 * apart. In every other build it is the tile's alone (kernel/tile.h).
 */
#ifndef WHERRY_MANYCORE_SHARED_CORE_RECORD_H
#define WHERRY_MANYCORE_SHARED_CORE_RECORD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define REASON_SIZE 120

struct tile;
struct context;

struct core {
    /* Known to entry.S by offset. */
    struct context *context; /* of the thread that runs */
    uint64_t kernel_rsp;     /* where kernel code of this core begins its stack */
    uint64_t exit_rsp;       /* to leave core_run() */
    uint32_t xmask;          /* components for XRSTOR */
    volatile uint32_t resched; /* go to core_next() instead of user code */

    struct tile *tile;
    int index;               /* 1..15 */
    int thread;              /* slot that runs here, or -1 */
    bool idle;
    bool stepped;            /* the program's trap flag has brought it here */
    pthread_t pthread;
    pthread_cond_t wake;
    void *signal_stack;
    char fault[REASON_SIZE]; /* why the program cannot continue */
};

#endif
