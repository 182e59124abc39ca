/*
 * The dirty pages of the user region: asked for while a process runs, for `precopy`.
 *
 * The region is written through two mappings, the program's and the kernel's (shared_image), so both are watched. Three
 * ways, the first that the machine has:
 *
 *   userfaultfd   write protection that Linux lifts by itself at the first write, and PAGEMAP_SCAN to ask and protect
 *                 again at once (Linux 6.7; root, or vm.unprivileged_userfaultfd): 0.7 us a first write
 *   mprotect      read-only pages, and our handler of SIGSEGV: 5 us a first write
 *   none          every page counts as written
 */
#ifndef WHERRY_MANYCORE_KERNEL_DIRTY_TRACKING_H
#define WHERRY_MANYCORE_KERNEL_DIRTY_TRACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "../shared/shared_memory.h"

struct dirty_tracking {
    enum tracking_kind kind;
    bool on;
    int fault_fd, map_fd;
    uint8_t *image;                       /* the kernel's mapping */
    uint32_t from;                        /* offset of the first page that can be written */
    _Atomic uint64_t written[WRITTEN_WORDS]; /* mprotect: by the handler */
};

/* From here on every write to the region at or after `from` is noted. Returns how. */
enum tracking_kind dirty_tracking_begin(struct dirty_tracking *tracking, uint8_t *image, uint32_t from);
/* Adds the pages that were written since the last time to `written`. */
void dirty_tracking_scan(struct dirty_tracking *tracking, uint64_t written[WRITTEN_WORDS]);
void dirty_tracking_end(struct dirty_tracking *tracking);
/* A write fault at `address`: whether it was ours, and the write can be done again. Called from a signal handler. */
bool dirty_tracking_fault(struct dirty_tracking *tracking, uint64_t address);
/* The best way that this machine has; `lacks` is the facility missing for a better one (NULL: none). */
enum tracking_kind dirty_tracking_probe(const char **lacks);

#endif
