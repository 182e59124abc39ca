/* Pages of another process, or of memory that processes share (objects.h), which may go away while they are read. */
#ifndef WHERRY_PAGER_READ_PAGES_H
#define WHERRY_PAGER_READ_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "page_set.h"
#include <wherry/page_sums.h>
#include "stream.h"

enum { RANGES_MAX = STREAM_PAGES_MAX };

struct range {
    uint64_t start;
    uint32_t pages;
    bool is_zero; /* it need not be read */
};

/* Where pages come from. */
struct source {
    int pid, memory;   /* as we count; /proc/PID/mem. Or 0 and a file, in which pages behind its end are zero */
    int pagemap;       /* of the process; -1: none of its pages can be shared since a fork */
    uint32_t ns_pid;   /* the stream's `pid` */
    uint64_t base;     /* the address, or the place in the file, that is 0 in the stream */
    struct page_sums *sums;        /* not NULL: only pages that differ from their last read contents are sent */
    const struct page_set *owed;   /* not NULL: these too, which were sent without a sum */
};

/* Ranges of one source. Those to be read have at most STREAM_PAGES_MAX pages together. */
struct batch {
    struct source source;
    uint32_t pages;    /* to be read */
    uint32_t count;
    struct range ranges[RANGES_MAX];
};

enum page_state { PAGE_HAS_CONTENTS, PAGE_IS_ZERO, PAGE_IS_GONE /* or as it was sent */ };

/* Reads the pages of a batch one after the other into `bytes`, which has room for STREAM_PAGES_MAX of them. */
void read_pages(const struct batch *batch, uint8_t *bytes, enum page_state states[STREAM_PAGES_MAX]);
/* Whether a page of a source that owes any could not be read since the last call. */
bool read_pages_failed(void);

#endif
