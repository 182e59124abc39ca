/* /proc/PID/pagemap: the page tables' bits of each page, on any kernel. */
#ifndef WHERRY_PAGER_PAGEMAP_H
#define WHERRY_PAGER_PAGEMAP_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/own_pages.h>

/* Whether a page with this entry is meant. */
typedef bool (*pagemap_filter)(uint64_t entry);

/*
 * Calls for each run of pages between two addresses that the filter lets through; stops at the first answer that is not 0,
 * and returns it. Else 0 or negative errno; -ESRCH: the process has ended, or called exec.
 */
int pagemap_each(int pagemap, uint64_t start, uint64_t end, pagemap_filter filter,
                 int (*region)(void *context, uint64_t start, uint64_t end, uint64_t categories), void *context);

#endif
