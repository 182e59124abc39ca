/*
 * Soft-dirty bits (CONFIG_MEM_SOFT_DIRTY), as far as they touch the kernel.
 *
 * A page with a clear bit has not been written since the bits of its process were cleared. But it may have been at
 * another address then: mremap moves whole page tables, 2 MiB and more, without marking their pages (Linux 5.0 and later,
 * x86-64). So calls of mremap are counted, on the whole machine, by the kernel's tracepoints.
 */
#ifndef WHERRY_PAGER_SOFT_DIRTY_H
#define WHERRY_PAGER_SOFT_DIRTY_H

#include <stddef.h>
#include <stdint.h>

/* Begins to count. 0 or negative errno; then `why` has the step that failed, in words. Once. */
int soft_dirty_open(char *why, size_t size);
/* Clears the bits of all pages that a process has; they are set from now on by writes. 0 or negative errno. */
int soft_dirty_clear(int pid);
/*
 * How many calls of mremap have begun. When two answers are equal, and not negative, no page was moved from before the
 * first one until the second. Negative: one is under way, or that is not known.
 */
int64_t soft_dirty_moves(void);

#endif
