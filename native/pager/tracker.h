/*
 * The writes of one process, followed by the kernel: a userfaultfd with asynchronous write protection, on which each
 * pageable mapping is registered, and scans of the page tables, which read and protect in one step. Where the kernel has
 * none of that, pages are compared (pagemap_tracker.h); the rest of this is about write protection only.
 *
 * Results of a scan on Linux 6.18, and the consequences:
 *
 *   never touched          WRITTEN, neither PRESENT nor SWAPPED. Scans ask for one of the two: protecting absent
 *                          memory would make page tables for it, 2 MiB a GiB
 *   dropped                the same, as if it had never been there. So sent pages are noted (`sent`), and those no
 *                          longer there are sent as a hole
 *   zero page, huge page   PRESENT and PFNZERO; as its small pages, and a write splits it
 *   moved (mremap), mapped anew at the same address, the memory after fork or exec
 *                          not registered, so not WPALLOWED: it is registered in the next round, and all of it is WRITTEN
 *                          as nothing of it is protected
 *   mprotect, brk, growth  nothing changes; new memory is either part of the registered mapping or not registered
 *   of the kernel alone    MAP_DROPPABLE cannot be registered: it is sent whole in the last pass
 */
#ifndef WHERRY_PAGER_TRACKER_H
#define WHERRY_PAGER_TRACKER_H

#include <stdbool.h>
#include <stddef.h>

#include "process.h"
#include "tracking.h"

/* How all processes are tracked; TRACKING_WP_ASYNC until this is called. Before all else. */
void tracker_use(enum tracking tracking);
enum tracking tracker_used(void);
/* Whether scans find the dirty pages; else pages are compared when they are read. */
bool tracker_scans(const struct process *process);
/* Whether the process is tracked, so that tracker_see_written finds the pages to be sent. */
bool tracker_follows(const struct process *process);
/*
 * Looks at the process anew: its address space and its mappings. 0, or negative errno when it is gone or has no memory.
 * Before every scan.
 */
int tracker_look(struct process *process);
/*
 * Makes sure that a running process is tracked: all that is pageable now. 0 or negative errno with `why` in words; a
 * process that is not tracked is to be sent whole. Includes tracker_look.
 */
int tracker_follow(struct process *process, char *why, size_t size);
/*
 * From now on the process's writes are found by comparison, as its memory may be pinned (pins.h): all that was sent of
 * it is sent again. 0 or -ENOMEM.
 */
int tracker_compare(struct process *process);
/*
 * Scans, each 0.5 ms a GiB and more for the pages found (3 ms a GiB when that is all). 0 or negative errno; -ESRCH: it
 * has ended, or called exec, since the last look.
 */
/* Pages with contents that were written since they were last taken, or are new. They are protected again. */
int tracker_take_written(struct process *process, tracker_region region, void *context);
/* The same without protecting. */
int tracker_see_written(const struct process *process, tracker_region region, void *context);
/* Pages with contents in pageable mappings that are not registered. */
int tracker_see_untracked(const struct process *process, tracker_region region, void *context);
/* Pages without contents, in any mapping and between mappings. */
int tracker_see_holes(const struct process *process, tracker_region region, void *context);
/* Pages with contents in mappings that are registered; without write protection, in all that are pageable. */
int tracker_see_tracked(const struct process *process, tracker_region region, void *context);
/* Ends the protection and frees all. */
void tracker_close(struct process *process);

#endif
