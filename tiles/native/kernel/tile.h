/*
 * A tile: one Linux process with a master core (its first thread, kernel code only) and slave cores (pthreads) that run
 * the threads of at most one tile process.
 *
 * `lock` guards everything of struct tile below it and the User Area of the process. A core that runs user code owns
 * that thread's context; it gives it up in core_next(), which is also where it notices that the process is frozen. So
 * `running == 0` while `frozen` is the acknowledgement of every core, and the User Area is then at rest.
 *
 *             kernel call, timer, fault               core_next(): takes the next ready thread
 *   user code ------------------------> kernel stack ----------------------------------------> user code
 *                                          |   none ready, or frozen: the core sleeps on `wake`
 */
#ifndef WHERRY_MANYCORE_KERNEL_TILE_H
#define WHERRY_MANYCORE_KERNEL_TILE_H

#include <pthread.h>
#include <signal.h>

#include "../shared/shared_memory.h"
#include "dirty_tracking.h"

#define CORE_MAX 16
#define PREEMPT_MS 10 /* a core that is wanted by another thread is taken after at most two of these */
#define PREEMPT_SIGNAL SIGUSR1
#define SLICE_MS 50   /* how often a waiting side of a move checks whether the other side is alive */

struct move_side;

struct tile {
    struct shared_memory *shared;
    uint32_t index;
    int event_fd;              /* rings the name server */
    int cpus;                  /* that its cores may run on */
    struct move_side *side;    /* in a move; migration/move_side.h */
    void (*poll_move)(struct tile *tile); /* an idle core calls it when `poll_wanted`; set by move_engine_start() */
    struct dirty_tracking dirty_tracking;

    pthread_mutex_t lock;
    pthread_cond_t quiet;      /* `running` became 0 */
    bool frozen, stopping;
    bool ticking;              /* the master takes cores from threads, for threads that wait for one */
    int running;
    bool freezing_for_move;    /* the core that gives up the last thread continues the move */
    int polling_core;          /* it runs the tasks of a move, and looks for a thread afterwards; 0 none */
    bool poll_wanted;          /* an idle core is to run the tasks of the move for a while */
    uint32_t process;          /* valid while `area` is set */
    struct user_area *area;
    uint8_t *image;            /* the user region as the kernel sees it, always writable */
    uint64_t place;            /* the location entry by which we run it */
    uint32_t resuming;         /* threads that were ready at the last thaw and have not run yet */
    struct move *resumed_move; /* where to note that they have */
    int step_mode;             /* for tests: a process that steps is moved so after each instruction; -1: not */
    bool stepping;             /* it waits for that move */
    int64_t next_due;          /* when the master looks for messages under way in the mesh; 0: not */
    bool ending;               /* exit was called, or a fault */
    int status;
    char why[REASON_SIZE];
#ifdef WHERRY_TILE_MIXED
    struct user_area mixed;    /* the process's threads, with the cores between them */
#else
    struct core cores[CORE_MAX];
#endif
};

static inline struct core *tile_core(struct tile *tile, uint32_t index)
{
#ifdef WHERRY_TILE_MIXED
    return &tile->mixed.threads[index].core;
#else
    return &tile->cores[index];
#endif
}

#endif
