/*
 * CRIU's side of a lazy restore: a userfaultfd of each process, and the events read from it.
 *
 *   criu restore --lazy-pages --connects to lazy-pages.socket-->   for each process: int32 pid, then a byte with the
 *                                                                  descriptor (negative: a zombie, which has none);
 *                                                                  at last the 4 bytes 0x52535446
 *   restored process --page fault, fork, mremap, munmap, madvise--> its descriptor
 *   child            --its descriptor comes in the event of the fork
 *
 * One thread reads it all. A fault that cannot be answered, as an event is under way, is tried again: after the next
 * read, or in lazy_due(). A fault at a page that is still at the source is kept until it has come.
 */
#ifndef WHERRY_PAGER_LAZY_H
#define WHERRY_PAGER_LAZY_H

#include <stdbool.h>
#include <stdint.h>

#include "cache.h"
#include "fill.h"
#include "guard.h"

struct lazy {
    struct cache *cache;
    struct fill *fill;
    struct guard *guard;
    const char *path;
    int epoll;              /* an added descriptor has its process, &lazy->listener or &lazy->connection in data.ptr */
    int listener, connection; /* -1: closed */
    uint32_t expected;      /* the process whose descriptor comes next; 0: none */
    unsigned count;         /* descriptors that came */
    bool complete;          /* the cache is */
    bool restored, thawed;
    uint16_t recent;        /* the pass from which on contents are recent */
    struct process *waiting; /* for the cache to be complete */
    bool reap;              /* lazy_reap() has something to do */
    unsigned busy;          /* processes that are to be tried again */
    int64_t pause_ns;
};

/* These return 0 or negative errno. */
int lazy_open(struct lazy *lazy, const char *path);
/* Removes the socket's file. */
void lazy_unlink(struct lazy *lazy);
int lazy_accept(struct lazy *lazy);
/* Reads from CRIU. -ECONNRESET: it has ended before the restore was complete. */
int lazy_read(struct lazy *lazy);
/* Every page has come, in `passes` passes: faults are answered from now on. */
int lazy_complete(struct lazy *lazy, uint16_t passes);
/* The node runs: all memory is filled in from now on, not only where it faults. */
void lazy_thawed(struct lazy *lazy);
/* Reads the events of a process. */
int lazy_serve(struct lazy *lazy, struct process *process);
/* Pages have come for which processes wait. */
int lazy_answer(struct lazy *lazy);
/* Nanoseconds after which lazy_due() wants to be called at the latest; -1: no need. `in_vain`: nothing came. */
int64_t lazy_timeout(const struct lazy *lazy);
int lazy_due(struct lazy *lazy, bool in_vain);
/* Closes the descriptors of processes that lack nothing, or are gone. True when that was all. */
bool lazy_reap(struct lazy *lazy);

#endif
