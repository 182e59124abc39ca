/*
 * The tracker (tracker.h) on kernels without asynchronous write protection: nothing is done to a process but that its
 * soft-dirty bits are cleared, once. A page that may have changed is sent if its checksum differs from that of its sent
 * contents (page_sums.h).
 *
 *   comparison  all pages with contents may have changed
 *   soft-dirty  of a process that was gone through once since its bits were cleared: pages that
 *                 have the bit;
 *                 are shared with another process, or the page of zeros, which nobody has to write to have it again;
 *                 lie below 4 GiB, where 32-bit calls may have moved them, which are not counted (soft_dirty.h);
 *               all of them when mremap was called since
 *
 * The bits are never cleared again: between reading them and clearing them a write would be lost, while the process
 * runs. So they mark the pages written since the first round, and the checksums show which of these were written since
 * the last one.
 */
#ifndef WHERRY_PAGER_PAGEMAP_TRACKER_H
#define WHERRY_PAGER_PAGEMAP_TRACKER_H

#include "process.h"

/* Begins with a process, unless that was done. 0 or negative errno. */
int pagemap_follow(struct process *process, bool soft_dirty);
/* Pageable pages that may have changed; the next call depends on this one, but for pagemap_see_written. */
int pagemap_take_written(struct process *process, bool soft_dirty, tracker_region region, void *context);
int pagemap_see_written(const struct process *process, bool soft_dirty, tracker_region region, void *context);
/* Pageable pages with contents. */
int pagemap_see_contents(const struct process *process, tracker_region region, void *context);
/* All pages but those. */
int pagemap_see_holes(const struct process *process, tracker_region region, void *context);

#endif
