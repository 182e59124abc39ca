/* See read_pages.h. */
#include "read_pages.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <wherry/own_pages.h>

enum { NEAR = 64 * STREAM_PAGE }; /* ranges that are no farther from each other are looked at together */

static _Atomic bool failed;

static bool is_zero(const uint8_t *page)
{
    return !page[0] && !memcmp(page, page + 1, 64) && !memcmp(page, page + 64, STREAM_PAGE - 64);
}

/* Whatever the protection of a mapping, and without a copy for the process (own_pages.h). */
static bool read_one(const struct source *source, uint64_t address, uint8_t *bytes)
{
    return source->pid && pread(source->memory, bytes, STREAM_PAGE, (off_t)(source->base + address)) == STREAM_PAGE;
}

/* read(2) does not give the bytes that mappings have behind the end of a file, in its last page. */
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

static void read_files(const struct batch *batch, uint8_t *bytes, bool *got)
{
    uint32_t have = 0;

    for (uint32_t i = 0; i < batch->count; i++) {
        const struct range *range = &batch->ranges[i];

        if (range->is_zero)
            continue;
        if (!read_file(batch->source.memory, (off_t)(batch->source.base + range->start),
                       bytes + (size_t)have * STREAM_PAGE, (size_t)range->pages * STREAM_PAGE))
            break;
        memset(got + have, true, range->pages);
        have += range->pages;
    }
}

/* Runs of pages of a process, which are read at once, one after the other. */
struct gathered {
    const struct source *source;
    uint8_t *bytes;
    bool *got;
    struct iovec there[STREAM_PAGES_MAX];
    size_t count;
    uint32_t first, pages; /* the places of the pages in `bytes` */
};

static void read_gathered(struct gathered *gathered)
{
    struct iovec here = {gathered->bytes + (size_t)gathered->first * STREAM_PAGE, (size_t)gathered->pages * STREAM_PAGE};
    ssize_t size;

    if (gathered->count &&
        (size = process_vm_readv(gathered->source->pid, &here, 1, gathered->there, gathered->count, 0)) > 0)
        memset(gathered->got + gathered->first, true, (size_t)size / STREAM_PAGE);
    gathered->first += gathered->pages;
    gathered->count = gathered->pages = 0;
}

/* Pages that are the process's own are gathered; others are read now, as far as that goes. */
static void take_run(struct gathered *gathered, uint64_t address, uint32_t pages, bool own)
{
    size_t size = (size_t)pages * STREAM_PAGE;
    ssize_t got;

    if (own) {
        gathered->there[gathered->count++] = (struct iovec){(void *)address, size};
        gathered->pages += pages;
        return;
    }
    read_gathered(gathered);
    got = pread(gathered->source->memory, gathered->bytes + (size_t)gathered->first * STREAM_PAGE, size, (off_t)address);
    if (got > 0)
        memset(gathered->got + gathered->first, true, (size_t)got / STREAM_PAGE);
    gathered->first += pages;
}

/* Where the ranges end that begin with this one and are near to each other. */
static uint64_t end_of_near(const struct batch *batch, uint32_t first)
{
    uint64_t end = batch->ranges[first].start + (uint64_t)batch->ranges[first].pages * STREAM_PAGE;

    for (uint32_t i = first + 1; i < batch->count; i++) {
        const struct range *range = &batch->ranges[i];

        if (range->is_zero)
            continue;
        if (range->start < end || range->start - end > NEAR)
            break;
        end = range->start + (uint64_t)range->pages * STREAM_PAGE;
    }
    return end;
}

static void read_process(const struct batch *batch, uint8_t *bytes, bool *got)
{
    const struct source *source = &batch->source;
    struct gathered gathered = {.source = source, .bytes = bytes, .got = got};
    struct own_pages look = {.pagemap = source->pagemap};

    for (uint32_t i = 0; i < batch->count; i++) {
        uint64_t address = source->base + batch->ranges[i].start, end = source->base + end_of_near(batch, i);

        for (uint32_t left = batch->ranges[i].is_zero ? 0 : batch->ranges[i].pages, run; left; left -= run) {
            bool own;

            run = own_pages_run(&look, address, left, end, &own);
            take_run(&gathered, address, run, own);
            address += (uint64_t)run * STREAM_PAGE;
        }
    }
    read_gathered(&gathered);
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
    bool read[STREAM_PAGES_MAX] = {false};
    uint32_t at = 0;

    if (source->pid)
        read_process(batch, bytes, read);
    else
        read_files(batch, bytes, read);
    for (uint32_t i = 0; i < batch->count; i++)
        for (uint32_t page = 0; page < batch->ranges[i].pages && !batch->ranges[i].is_zero; page++, at++) {
            uint64_t address = batch->ranges[i].start + (uint64_t)page * STREAM_PAGE;
            uint8_t *here = bytes + (size_t)at * STREAM_PAGE;

            bool got = read[at] || read_one(source, address, here);

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
