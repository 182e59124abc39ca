/*
 * Finds the pages of a process that are its own, and those it still shares with others since a fork (copy-on-write).
 *
 * process_vm_readv(2) is half as fast again as /proc/PID/mem, but it pins the pages it reads, and the kernel gives the
 * process a copy of each shared page for that: a job that forked its workers would use many times its memory, and be
 * killed for it. So shared pages are to be read from /proc/PID/mem, which pins nothing.
 */
#ifndef WHERRY_OWN_PAGES_H
#define WHERRY_OWN_PAGES_H

#include <stdbool.h>
#include <stdint.h>

/* Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst). */
#define PAGEMAP_EXCLUSIVE (UINT64_C(1) << 56) /* of this process alone; the shared page of zeros never is */
#define PAGEMAP_GUARD (UINT64_C(1) << 58)     /* Linux 6.15; looks swapped, and has no contents */
#define PAGEMAP_SWAPPED (UINT64_C(1) << 62)
#define PAGEMAP_PRESENT (UINT64_C(1) << 63)

enum { OWN_PAGES_PAGE = 4096, OWN_PAGES_LOOK = 512 };

/* The last read part of one pagemap. */
struct own_pages {
    int pagemap; /* the descriptor; -1: all pages count as own */
    uint64_t first;
    uint32_t count;
    uint64_t entries[OWN_PAGES_LOOK];
};

/*
 * How many pages from `address` on, of at least 1 and at most `pages`, are alike: own or not, as `own` shows. Entries
 * as far as `end` are read with it, as the caller will ask for them next. A page that cannot be read counts as shared.
 */
uint32_t own_pages_run(struct own_pages *look, uint64_t address, uint32_t pages, uint64_t end, bool *own);

#endif
