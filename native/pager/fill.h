/*
 * Pages into restored processes: at once where one waits for its page, and all others in the background.
 *
 * A process's lock is held for reading around each UFFDIO_COPY, and for writing by the reader of its descriptor, from
 * before the read: the change that an event reports has happened by then, and the process continues when it is read. So
 * nobody copies to where a page belonged before. While an event is under way the kernel itself refuses to copy
 * (EAGAIN): from before the mappings change until the thread that changed them runs again after the read. A refused
 * filler waits, and keeps the fault.
 *
 * A page whose contents are still at the source (fetch.h) is left out; threads that wait for it wait on.
 *
 *   order: behind the last faults; pages that came in the last two passes; all else, by address. Processes take turns.
 */
#ifndef WHERRY_PAGER_FILL_H
#define WHERRY_PAGER_FILL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "address_map.h"
#include "fetch.h"

enum { FILL_THREADS_MAX = 16 };

struct process {
    struct process *next;
    uint32_t pid;          /* of a child: its parent's */
    int userfault;         /* -1: closed */
    pthread_rwlock_t lock;
    struct address_map map;
    _Atomic bool gone;     /* has ended, or called exec */
    _Atomic unsigned references;
    _Atomic uint64_t hint; /* behind the last fault; 0: none */
    pthread_mutex_t choosing;
    uint64_t cursor;       /* where the next filler begins */
    bool recent_done;
    bool busy;             /* lazy.c: to be tried again */
    uint64_t *faults;      /* not answered yet */
    size_t fault_count, fault_capacity;
};

struct fill {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct process *processes;
    uint32_t turn;
    bool open, end;
    unsigned count;
    pthread_t threads[FILL_THREADS_MAX];
    struct fetch *fetch;
    int notify;                /* an eventfd: a process has all, or is gone */
    _Atomic int failure;       /* negative errno: an error that nobody expects */
    _Atomic uint64_t bytes;
    uint64_t rate;             /* bytes a second; 0: as fast as it goes */
    _Atomic int64_t free_ns;   /* when the rate allows the next copy */
};

/* Returns NULL when there is no memory. Takes the descriptor over. */
struct process *process_new(uint32_t pid, int userfault);
void process_get(struct process *process);
void process_put(struct process *process);

int fill_start(struct fill *fill, struct fetch *fetch, unsigned threads, uint64_t rate, int notify);
void fill_end(struct fill *fill);
/* From now on in the background too. */
void fill_open(struct fill *fill);
/* The list's reference. */
void fill_add(struct fill *fill, struct process *process);
void fill_remove(struct fill *fill, struct process *process);

/*
 * The lock is held for writing. 0: threads that waited at this address continue. -EAGAIN: an event is under way, which
 * has to be read. -EINPROGRESS: the page is asked for. -ESRCH: the process is gone.
 */
int fill_fault(struct fill *fill, struct process *process, uint64_t address);
/* The lock is held for writing. -EAGAIN: an event is under way. */
int fill_resolve_events(struct process *process);

#endif
