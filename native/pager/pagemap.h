/* /proc/PID/pagemap: what the page tables say of each page, on any kernel. */
#ifndef WHERRY_PAGER_PAGEMAP_H
#define WHERRY_PAGER_PAGEMAP_H

#include <stdbool.h>
#include <stdint.h>

/* Bits of an entry (Documentation/admin-guide/mm/pagemap.rst). */
#define PAGEMAP_SOFT_DIRTY (UINT64_C(1) << 55)
#define PAGEMAP_EXCLUSIVE (UINT64_C(1) << 56) /* of this process alone; the shared page of zeros never is */
#define PAGEMAP_GUARD (UINT64_C(1) << 58)     /* Linux 6.15; looks swapped, and has no contents */
#define PAGEMAP_FILE (UINT64_C(1) << 61) /* of a file or shared; or the huge page of zeros */
#define PAGEMAP_SWAPPED (UINT64_C(1) << 62)
#define PAGEMAP_PRESENT (UINT64_C(1) << 63)

/* Whether the page at `address` with this entry is meant. */
typedef bool (*pagemap_filter)(uint64_t address, uint64_t entry);

/*
 * Calls for each run of pages between two addresses that the filter lets through; stops at the first answer that is not 0,
 * and returns it. Else 0 or negative errno; -ESRCH: the process has ended, or called exec.
 */
int pagemap_each(int pagemap, uint64_t start, uint64_t end, pagemap_filter filter,
                 int (*region)(void *context, uint64_t start, uint64_t end, uint64_t categories), void *context);

#endif
