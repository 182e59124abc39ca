/*
 * The tracker (tracker.h) on kernels without asynchronous write protection: nothing is done to a process. All its pages
 * with contents are read in each pass, and a page is sent if its checksum differs from that of its sent contents
 * (page_sums.h).
 */
#ifndef WHERRY_PAGER_PAGEMAP_TRACKER_H
#define WHERRY_PAGER_PAGEMAP_TRACKER_H

#include "process.h"

/* Pageable pages with contents. */
int pagemap_see_contents(const struct process *process, tracker_region region, void *context);
/* All pages but those. */
int pagemap_see_holes(const struct process *process, tracker_region region, void *context);

#endif
