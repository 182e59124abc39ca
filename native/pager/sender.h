/*
 * The sending end of the stream (stream.h): a thread for each connection, which reads memory, leaves out what is zero and
 * sends the rest, while the caller finds out what comes next. One caller only.
 */
#ifndef WHERRY_PAGER_SENDER_H
#define WHERRY_PAGER_SENDER_H

#include <stdint.h>

#include "tracker.h"

/* Since the last sender_finish. */
struct sender_totals {
    uint64_t bytes, pages, zero_pages;
};

/* Takes over connected sockets. 0 or negative errno. */
int sender_start(const int *sockets, int count);

/*
 * Pages of a process: as they are by the time they are read, or zero. Those that are gone by then are left out. Each page
 * at most once until sender_finish; the process's descriptors stay open until then. 0 or negative errno.
 */
int sender_add(const struct process *process, uint64_t start, uint64_t end);
int sender_add_zero(const struct process *process, uint64_t start, uint64_t end);
/* The process has ended. None of its pages until sender_finish. 0 or negative errno. */
int sender_add_end(uint32_t inside);

/* Sends all that was added, then `type` (R or L) with `number`, and waits for the answer. 0 or negative errno. */
int sender_finish(char type, uint64_t number, struct sender_totals *totals);

#endif
