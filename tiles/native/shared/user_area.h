/*
 * The User Area: all that the kernel keeps of a tile process, in one structure of fixed size without a pointer, so that
 * with the user region it is the whole process and can be continued by any tile of the same build.
 *
 *   page 0        head: identity, extents of the image, free and used slots, ready queue, exit values, checksum
 *   page 1..18    one thread slot each: context, state, what it waits for
 *
 * Threads are linked by slot number. Three threads, two of them ready, one waits for a message in port 4:
 *
 *   head    used 0b0111, ready_first 2, ready_last 0
 *   slot 0  READY   next -1        slot 1  WAITING  WAIT_MAIL 4        slot 2  READY  next 0
 *
 * Invariants, all checked by user_area_check() on arrival: the ready queue has no cycle and holds exactly the
 * READY threads; every instruction pointer lies in the text, a CALLING thread's with room for a call before it; every
 * stack pointer lies in the user region (a program may run on a stack of its own making); nothing in the extended state
 * would make XRSTOR fault. The program's acts there are its own affair: a call is looked at when it is made
 * (core_call). No thread is RUNNING in a sealed User Area.
 */
#ifndef WHERRY_MANYCORE_SHARED_USER_AREA_H
#define WHERRY_MANYCORE_SHARED_USER_AREA_H

#include <stdbool.h>

#include <stddef.h>

#include "../abi/abi.h"
#include "core_record.h"
#include "thread_context.h"

#define USER_AREA_MAGIC 0x6165726172657375ull /* "userarea" */
#define USER_AREA_VERSION 2 /* changes with anything in this file; tiles of two builds never meet (shared_memory.h) */
#define EXIT_VALUES 32 /* of ended threads that nobody has joined; the oldest is forgotten */
#define PROCESS_MAX 32
#define USER_AREA_SIZE ((1 + THREAD_MAX) * PAGE_SIZE)

enum thread_state { THREAD_FREE, THREAD_READY, THREAD_RUNNING, THREAD_WAITING, THREAD_CALLING };
enum wait_kind {
    WAIT_NOTHING, WAIT_WORD, WAIT_JOIN, WAIT_MAIL, WAIT_SEND, WAIT_MOVE, WAIT_SYNC, WAIT_OPERATION, WAIT_FREEZE,
    WAIT_KINDS
};

struct thread {
    struct context context;
    uint32_t id;
    uint8_t state, wait; /* enum thread_state, enum wait_kind */
    int8_t next;         /* in the ready queue; -1 is the end */
    uint8_t unused;
    uint32_t affinity;   /* bit N: may run on core N */
    uint32_t object;     /* WORD: offset in the region; JOIN: thread id; MAIL: port; SEND: process << 8 | port; SYNC: its
                          * number; OPERATION: set of operations */
#ifdef WHERRY_TILE_MIXED
    _Alignas(64) struct core core; /* the kernel's own, of the core of this number (core_record.h); XSAVE's alignment */
#else
    uint8_t rest[PAGE_SIZE - sizeof(struct context) - 16];
#endif
};

struct user_area {
    union {
        struct {
            uint64_t magic;
            uint32_t version, size, checksum, process;
            uint32_t epoch;                      /* of the location entry that lets a tile run it */
            uint32_t xfeatures;                  /* state components that contexts may hold */
            uint32_t xsize;                      /* bytes of a full context's extended state */
            uint32_t used;                       /* bit N: slot N holds a thread */
            uint32_t next_thread;                /* id of the thread that is created next */
            int8_t ready_first, ready_last;
            uint16_t exit_next;
            uint32_t text_end, rodata_end, end;  /* offsets in the region; `end` moves when the program grows */
            uint32_t only;                       /* id of the thread that has frozen the others; 0: none */
            struct { uint32_t thread; int64_t value; } exits[EXIT_VALUES];
        };
        uint8_t head[PAGE_SIZE];
    };
    struct thread threads[THREAD_MAX];
};

#ifndef WHERRY_TILE_MIXED
static_assert(sizeof(struct thread) == PAGE_SIZE, "one page for each thread");
static_assert(sizeof(struct user_area) == USER_AREA_SIZE, "fixed size");
#endif
/* Bytes of a thread slot that belong to the thread. */
#define THREAD_SIZE (offsetof(struct thread, object) + sizeof(uint32_t))

/* A piece of the tile process: `offset` in the user region. */
struct extent { uint32_t offset, size; };

/* A process without threads; `xfeatures` and `xsize` are the machine's (see cpu.h). */
void user_area_init(struct user_area *area, uint32_t process, uint32_t xfeatures, uint32_t xsize);
/* A ready thread at `entry`. Returns its slot, or -EAGAIN when all are used. */
int user_area_add_thread(struct user_area *area, uint32_t entry, uint64_t rdi, uint64_t rsi);
/* Frees the slot of a thread and keeps its value for a later join. The caller makes joiners ready. */
void user_area_end_thread(struct user_area *area, int slot, int64_t value);
/* Takes the value of an ended thread. Returns false when there is none. */
bool user_area_take_exit(struct user_area *area, uint32_t thread, int64_t *value);
/* Slot of a living thread, or -1. */
int user_area_find_thread(const struct user_area *area, uint32_t thread);
/* Whether a thread is not frozen by another. */
bool user_area_may_run(const struct user_area *area, int slot);
/* Puts a thread at the end of the ready queue. */
void user_area_make_ready(struct user_area *area, int slot);
/* Takes the first ready thread that may run on `core`. Returns its slot or -1. */
int user_area_take_ready(struct user_area *area, int core);
/* First used byte of the thread's stack, a page boundary: an offset in the region. */
struct extent user_area_stack(const struct user_area *area, int slot);
/* The parts of the user region that must move: the image and the used part of every stack. Returns their count. */
int user_area_list_extents(const struct user_area *area, struct extent extents[THREAD_MAX + 2]);

/* CRC-32C over the head and the used slots. */
uint32_t user_area_checksum(const struct user_area *area);
void user_area_seal(struct user_area *area);
/*
 * Whether a process that arrives can be continued here. Returns NULL, or its fault in a few words.
 * The area may hold anything at all.
 */
const char *user_area_check(const struct user_area *area, uint32_t process, uint32_t xfeatures, uint32_t xsize);

#endif
