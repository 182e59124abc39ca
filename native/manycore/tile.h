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
#ifndef WHERRY_MANYCORE_TILE_H
#define WHERRY_MANYCORE_TILE_H

#include <pthread.h>
#include <signal.h>

#include "tasks.h"
#include "tracking.h"
#include "window.h"

#define CORE_MAX 16
#define PREEMPT_MS 10 /* a core that is wanted by another thread is taken after at most two of these */
#define PREEMPT_SIGNAL SIGUSR1
#define SLICE_MS 50   /* how often who waits in a move looks whether the other side is alive */

struct tile;

struct core {
    /* Known to enter.S by offset. */
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
    char fault[REASON_SIZE]; /* why the program cannot go on */
};

/* The tile's part in a move; see moving.h. Who runs the tasks has all of it. */
struct flow {
    _Atomic uint32_t calls;    /* of moving_run() since it was last idle: the first caller runs the tasks */
    struct tasks tasks;
    struct move *move;         /* NULL: none */
    bool source;
    uint32_t process, peer;
    uint64_t place;
    int64_t deadline;
    const char *wrong;         /* why this side gives up */
    uint32_t group, piece, pieces; /* `faithful`: group of pages, the next of it, and all so far */
    uint8_t *at;               /* the piece's place here */
    struct tracking tracking;
};

struct tile {
    struct window *window;
    uint32_t index;
    int event_fd;              /* rings the name server */
    int cpus;                  /* that its cores may run on */
    struct flow flow;

    pthread_mutex_t lock;
    pthread_cond_t quiet;      /* `running` became 0 */
    bool frozen, stopping;
    bool ticking;              /* the master takes cores from threads for those that wait for one */
    int running;
    bool giving;               /* it is frozen by a move: the core that comes to rest last goes on with that */
    int away;                  /* the core that is on an errand, and will look for a thread when it is back; 0 none */
    bool errand;               /* an idle core shall run the tasks of the move for a while */
    uint32_t process;          /* valid while `area` is set */
    struct uarea *area;
    uint8_t *image;            /* the user region as the kernel sees it, always writable */
    uint64_t place;            /* the location entry by which we run it */
    uint32_t resuming;         /* threads that were ready at the last thaw and have not run yet */
    struct move *resumed_move; /* where to note that they have */
    int step_mode;             /* for tests: a process that steps is moved so after each instruction; -1: not */
    bool stepping;             /* it waits for that move */
    bool ending;               /* exit was called, or a fault */
    int status;
    char why[REASON_SIZE];
    struct core cores[CORE_MAX];
};

/* tile.c: memory and the process. */
int tile_map_user(struct tile *tile, uint32_t slot, const struct uarea *area);
void tile_unmap_user(struct tile *tile);
/* Continues the process of a location entry that is ours. The user region is mapped. */
void tile_adopt(struct tile *tile, uint32_t process, struct place place, struct move *move);
/* Forgets the process; every core is quiet. */
void tile_release(struct tile *tile);
void tile_freeze(struct tile *tile);
/* The same without waiting: the core that is at rest last has an errand. */
void tile_ask_freeze(struct tile *tile);
/* Gives an idle core an errand. */
void tile_send_core(struct tile *tile);
void tile_thaw(struct tile *tile);
/* Wakes idle cores for ready threads. Lock held. */
void tile_wake_cores(struct tile *tile);
/* Makes waiting threads of this kind (and object, unless it is negative) ready to try their call again. Lock held. */
int tile_retry(struct tile *tile, enum wait_kind kind, int64_t object, int count);
void tile_end_process(struct tile *tile, int status, const char *why);

/* core.c, enter.S */
int core_start(struct core *core);
int core_install_handlers(struct tile *tile);
/* From here on Linux turns a system call that the calling thread makes in the user region into SIGSYS. */
int core_forbid_system_calls(void);
void core_run(struct core *core);
struct context *core_next(struct core *core);
struct context *core_call(struct core *core);
void core_fail(struct core *core);
extern const char core_gate[], core_gate_end[], core_enter[], core_enter_end[], core_preempted[], core_faulted[];

/* calls.c: executes the call of a thread. Lock held. Returns false when the thread has to wait. */
bool call_execute(struct tile *tile, int slot, int core);
bool call_is_masters(uint64_t number);
/* Completes the call of a thread and lets it run. Lock held. */
void call_complete(struct tile *tile, int slot, int64_t result);

/* messages.c: lets the process's operations go on. Lock held, the process is not frozen. */
void tile_advance_operations(struct tile *tile);

/* moving.c: runs the tasks of the tile's move as far as they go now. Any thread of the kernel, no lock held. */
void moving_start(struct tile *tile);
void moving_run(struct tile *tile);
/* A core's errand: runs the tasks and looks for more to do, for at most a millisecond. */
void moving_errand(struct tile *tile);
/* Whether the master has to look now and then, because the other side may be silent for ever. */
bool moving_is_active(struct tile *tile);

#endif
