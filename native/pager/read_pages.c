/* See read_pages.h. */
#include "read_pages.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static _Atomic bool failed;

static bool is_zero(const uint8_t *page)
{
    return !page[0] && !memcmp(page, page + 1, 64) && !memcmp(page, page + 64, STREAM_PAGE - 64);
}

/* process_vm_readv(2) is several times as fast as /proc, but keeps to the protection of a mapping. */
static bool read_one(const struct source *source, uint64_t address, uint8_t *bytes)
{
    return source->pid && pread(source->memory, bytes, STREAM_PAGE, (off_t)(source->base + address)) == STREAM_PAGE;
}

/* What mappings have behind the end of a file, in its last page, read(2) does not give. */
static void read_tail(int file, off_t place, uint8_t *bytes)
{
    void *page = mmap(NULL, STREAM_PAGE, PROT_READ, MAP_SHARED, file, place);
    struct iovec here = {bytes, STREAM_PAGE}, there = {page, STREAM_PAGE};

    if (page == MAP_FAILED)
        return;
    if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != STREAM_PAGE) /* unlike us it survives a file that shrinks */
        memset(bytes, 0, STREAM_PAGE);
    munmap(page, STREAM_PAGE);
}

static bool read_file(int file, off_t place, uint8_t *bytes, size_t size)
{
    size_t have = 0, page;

    while (have < size) {
        ssize_t got = pread(file, bytes + have, size - have, place + (off_t)have);

        if (got < 0)
            return false;
        if (!got)
            break;
        have += (size_t)got;
    }
    memset(bytes + have, 0, size - have);
    page = have - have % STREAM_PAGE;
    if (have > page)
        read_tail(file, place + (off_t)page, bytes + page);
    return true;
}

static uint32_t read_files(const struct batch *batch, uint8_t *bytes)
{
    uint32_t have = 0;

    for (uint32_t i = 0; i < batch->count; i++) {
        const struct range *range = &batch->ranges[i];

        if (range->is_zero)
            continue;
        if (!read_file(batch->source.memory, (off_t)(batch->source.base + range->start),
                       bytes + (size_t)have * STREAM_PAGE, (size_t)range->pages * STREAM_PAGE))
            break;
        have += range->pages;
    }
    return have;
}

/* As many of the pages as can be read at once. */
static uint32_t read_many(const struct batch *batch, uint8_t *bytes)
{
    struct iovec here = {bytes, (size_t)batch->pages * STREAM_PAGE}, there[RANGES_MAX];
    size_t count = 0;
    ssize_t got;

    for (uint32_t i = 0; i < batch->count; i++)
        if (!batch->ranges[i].is_zero)
            there[count++] = (struct iovec){(void *)(batch->source.base + batch->ranges[i].start),
                                            (size_t)batch->ranges[i].pages * STREAM_PAGE};
    if (!count)
        return 0;
    got = process_vm_readv(batch->source.pid, &here, 1, there, count, 0);
    return got < 0 ? 0 : (uint32_t)(got / STREAM_PAGE);
}

/* Whether the destination lacks it. */
static bool is_wanted(const struct source *source, uint64_t address, const uint8_t *contents)
{
    if (!source->sums)
        return true;
    return page_sums_changed(source->sums, address / STREAM_PAGE, contents) ||
           (source->owed && page_set_has(source->owed, address));
}

void read_pages(const struct batch *batch, uint8_t *bytes, enum page_state states[STREAM_PAGES_MAX])
{
    const struct source *source = &batch->source;
    uint32_t have = source->pid ? read_many(batch, bytes) : read_files(batch, bytes), at = 0;

    for (uint32_t i = 0; i < batch->count; i++)
        for (uint32_t page = 0; page < batch->ranges[i].pages && !batch->ranges[i].is_zero; page++, at++) {
            uint64_t address = batch->ranges[i].start + (uint64_t)page * STREAM_PAGE;
            uint8_t *here = bytes + (size_t)at * STREAM_PAGE;

            bool got = at < have || read_one(source, address, here);

            if (!got && source->owed)
                failed = true;
            if (!got || !is_wanted(source, address, here))
                states[at] = PAGE_IS_GONE;
            else
                states[at] = is_zero(here) ? PAGE_IS_ZERO : PAGE_HAS_CONTENTS;
        }
}

bool read_pages_failed(void)
{
    return atomic_exchange(&failed, false);
}
