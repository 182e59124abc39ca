/* See read_pages.h. */
#include "read_pages.h"

#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static bool is_zero(const uint8_t *page)
{
    return !page[0] && !memcmp(page, page + 1, 64) && !memcmp(page, page + 64, STREAM_PAGE - 64);
}

/* process_vm_readv(2) is several times as fast as /proc, but keeps to the protection of a mapping. */
static bool read_one(const struct batch *batch, uint64_t address, uint8_t *bytes)
{
    return pread(batch->memory, bytes, STREAM_PAGE, (off_t)address) == STREAM_PAGE;
}

/* As many of the pages as can be read at once. */
static uint32_t read_many(const struct batch *batch, uint8_t *bytes)
{
    struct iovec here = {bytes, (size_t)batch->pages * STREAM_PAGE}, there[RANGES_MAX];
    size_t count = 0;
    ssize_t got;

    for (uint32_t i = 0; i < batch->count; i++)
        if (!batch->ranges[i].is_zero)
            there[count++] = (struct iovec){(void *)batch->ranges[i].start,
                                            (size_t)batch->ranges[i].pages * STREAM_PAGE};
    if (!count)
        return 0;
    got = process_vm_readv(batch->pid, &here, 1, there, count, 0);
    return got < 0 ? 0 : (uint32_t)(got / STREAM_PAGE);
}

void read_pages(const struct batch *batch, uint8_t *bytes, enum page_state states[STREAM_PAGES_MAX])
{
    uint32_t have = read_many(batch, bytes), at = 0;

    for (uint32_t i = 0; i < batch->count; i++)
        for (uint32_t page = 0; page < batch->ranges[i].pages && !batch->ranges[i].is_zero; page++, at++) {
            uint8_t *here = bytes + (size_t)at * STREAM_PAGE;

            if (at >= have && !read_one(batch, batch->ranges[i].start + (uint64_t)page * STREAM_PAGE, here))
                states[at] = PAGE_IS_GONE;
            else
                states[at] = is_zero(here) ? PAGE_IS_ZERO : PAGE_HAS_CONTENTS;
        }
}
