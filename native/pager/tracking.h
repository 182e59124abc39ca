/*
 * How the writes of processes are found, the best first:
 *
 *   wp-async    userfaultfd's asynchronous write protection and PAGEMAP_SCAN, Linux 6.7: exactly the dirty pages
 *   comparison  on any kernel: all memory is read in each round and in the last pass, and the differences are sent
 *
 * Comparing is by checksums of the sent contents (page_sums.h).
 */
#ifndef WHERRY_PAGER_TRACKING_H
#define WHERRY_PAGER_TRACKING_H

#include <stddef.h>

enum tracking { TRACKING_WP_ASYNC, TRACKING_COMPARISON, TRACKINGS };

const char *tracking_name(enum tracking tracking);
/* 0 or -EINVAL. */
int tracking_parse(const char *name, enum tracking *tracking);

/*
 * Tries it on memory of this process. 0 or negative errno; then `why` has the missing feature of this kernel, in words.
 */
int tracking_probe(enum tracking tracking, char *why, size_t size);
/*
 * Chooses the named one, or the best one (NULL), for all that this program tracks. An exit code: 0, 1 when this kernel
 * does not have it, 2 when there is none of this name; the reason is on standard error.
 */
int tracking_choose(const char *name, enum tracking *tracking);
/* The same for `--probe`: prints the name, and `NAME: REASON` for each better one. An exit code. */
int tracking_tell(const char *name);

#endif
