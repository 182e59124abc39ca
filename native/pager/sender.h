/*
 * The sending end of the stream (stream.h): a thread for each connection, which reads memory, leaves out what is zero and
 * sends the rest, while the caller finds out what comes next. One caller only.
 */
#ifndef WHERRY_PAGER_SENDER_H
#define WHERRY_PAGER_SENDER_H

#include <stdbool.h>
#include <stdint.h>

#include "read_pages.h"
#include "stream.h"
#include "tracker.h"

/* Since the last sender_finish; bytes as they went over the wire. */
struct sender_totals {
    uint64_t bytes, pages, zero_pages;
};

/*
 * Takes over connected sockets. Frames are sealed with `key` (frame_seal.h), which may be NULL, and compressed where that
 * gains something. 0 or negative errno.
 */
int sender_start(const int *sockets, int count, const uint8_t *key, bool compresses);

/*
 * Pages of a process: as they are by the time they are read, or zero. Pages that are gone by then are left out. Each
 * page at most once until sender_finish; the process's descriptors stay open until then. 0 or negative errno.
 */
int sender_add(const struct process *process, uint64_t start, uint64_t end);
int sender_add_zero(const struct process *process, uint64_t start, uint64_t end);
/* The same of any source. */
int sender_add_of(const struct source *source, uint64_t start, uint64_t end, bool is_zero);
/* The process has ended. None of its pages until sender_finish. 0 or negative errno. */
int sender_add_end(uint32_t ns_pid);

/* Of these pages of a block the contents come later (M). 0 or negative errno. */
int sender_announce(uint32_t ns_pid, uint64_t block, const uint64_t pages[STREAM_BITS / 8]);

/* Sends all that was added, then `type` (R, L or P) with `number`, and waits for the answer. 0 or negative errno. */
int sender_finish(char type, uint64_t number, struct sender_totals *totals);

/* After P the caller sends by itself, and receives, on the first connection. 0 or negative errno. */
int sender_socket(void);
int sender_receive(struct stream_frame *frame);
/* -ESRCH: not all of these pages can be read. */
int sender_send_now(const struct batch *batch);

#endif
