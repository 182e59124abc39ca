/* Pages of another process, which may go away while they are read. */
#ifndef WHERRY_PAGER_READ_PAGES_H
#define WHERRY_PAGER_READ_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stream.h"

enum { RANGES_MAX = STREAM_PAGES_MAX };

struct range {
    uint64_t start;
    uint32_t pages;
    bool is_zero; /* it need not be read */
};

/* Ranges of one process. Those to be read have at most STREAM_PAGES_MAX pages together. */
struct batch {
    int pid, memory;   /* as we count; /proc/PID/mem */
    uint32_t inside;
    uint32_t pages;    /* to be read */
    uint32_t count;
    struct range ranges[RANGES_MAX];
};

enum page_state { PAGE_HAS_CONTENTS, PAGE_IS_ZERO, PAGE_IS_GONE };

/* Reads the pages of a batch one after the other into `bytes`, which has room for STREAM_PAGES_MAX of them. */
void read_pages(const struct batch *batch, uint8_t *bytes, enum page_state states[STREAM_PAGES_MAX]);

#endif
