/* A process whose memory is tracked and sent. */
#ifndef WHERRY_PAGER_PROCESS_H
#define WHERRY_PAGER_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "mappings.h"
#include "page_set.h"
#include <wherry/page_sums.h>

#define PROCESS_ADDRESS_END (UINT64_C(1) << 57)

/* Descriptors are -1 when not open. */
struct process {
    int pid, parent;     /* as we count */
    uint32_t ns_pid;     /* as its innermost PID namespace counts */
    uint64_t start_time; /* a pid comes again, both do not */
    bool listed;         /* by the last look at the list of processes */
    bool registered;     /* any mapping, by this userfaultfd; without one: tracker_follow was called */
    bool is_compared;    /* from now on, however others are tracked: its memory may be pinned (pins.h) */
    int userfaultfd;
    int pagemap, memory; /* of /proc; they belong to the address space that it had when they were opened */
    struct mappings mappings;
    struct page_set sent;  /* of which the destination may have contents */
    struct page_set again; /* of which it had contents when they were sent in the last round */
    struct page_sums *sums; /* not with write protection: of the sent contents */
    struct page_set owed;   /* sent before there were sums, so to be sent again */
    bool is_sent, may_be_pinned; /* in this round: gone through; found to be so behind the scan */
};

/* Takes pages of equal categories (wp_async.h) that a scan found. 0 to continue. */
typedef int (*tracker_region)(void *context, uint64_t start, uint64_t end, uint64_t categories);

#endif
