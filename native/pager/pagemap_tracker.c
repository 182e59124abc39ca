/* See pagemap_tracker.h. */
#include "pagemap_tracker.h"

#include "pagemap.h"
#include "soft_dirty.h"

#define LOW_END (UINT64_C(4) << 30)

static bool has_contents(uint64_t address, uint64_t entry)
{
    (void)address;
    return entry & (PAGEMAP_PRESENT | PAGEMAP_SWAPPED) && !(entry & PAGEMAP_GUARD);
}

static bool has_none(uint64_t address, uint64_t entry)
{
    return !has_contents(address, entry);
}

/* Of nobody else, and not of zeros: it had to be written to have other contents. */
static bool is_own(uint64_t entry)
{
    return !(entry & PAGEMAP_PRESENT) || (entry & (PAGEMAP_EXCLUSIVE | PAGEMAP_FILE)) == PAGEMAP_EXCLUSIVE;
}

static bool may_have_changed(uint64_t address, uint64_t entry)
{
    return has_contents(address, entry) && (entry & PAGEMAP_SOFT_DIRTY || !is_own(entry) || address < LOW_END);
}

static int each_pageable(const struct process *process, pagemap_filter filter, tracker_region region, void *context)
{
    int error = 0;

    for (size_t i = 0; i < process->mappings.count && !error; i++) {
        const struct mapping *mapping = &process->mappings.list[i];

        if (mapping->pageable)
            error = pagemap_each(process->pagemap, mapping->start, mapping->end, filter, region, context);
    }
    return error;
}

int pagemap_follow(struct process *process, bool soft_dirty)
{
    int error;

    if (process->registered)
        return 0;
    if (soft_dirty && (error = soft_dirty_clear(process->pid)))
        return error;
    process->registered = true;
    process->moves = -1;
    return 0;
}

/* Whether the bits show the changes. Not by themselves: only if no page has moved. */
static bool bits_tell(const struct process *process, int64_t moves)
{
    return process->moves >= 0 && process->moves == moves;
}

static int see(const struct process *process, bool soft_dirty, int64_t moves, tracker_region region, void *context)
{
    return each_pageable(process, soft_dirty && bits_tell(process, moves) ? may_have_changed : has_contents, region,
                         context);
}

int pagemap_take_written(struct process *process, bool soft_dirty, tracker_region region, void *context)
{
    int64_t moves = soft_dirty ? soft_dirty_moves() : -1; /* before the pages are looked at, and read */
    int error = see(process, soft_dirty, moves, region, context);

    process->moves = error ? -1 : moves;
    return error;
}

int pagemap_see_written(const struct process *process, bool soft_dirty, tracker_region region, void *context)
{
    return see(process, soft_dirty, soft_dirty ? soft_dirty_moves() : -1, region, context);
}

int pagemap_see_contents(const struct process *process, tracker_region region, void *context)
{
    return each_pageable(process, has_contents, region, context);
}

int pagemap_see_holes(const struct process *process, tracker_region region, void *context)
{
    uint64_t end = 0;
    int error = 0;

    for (size_t i = 0; i < process->mappings.count && !error; i++) {
        const struct mapping *mapping = &process->mappings.list[i];

        if (!mapping->pageable)
            continue;
        if (mapping->start > end)
            error = region(context, end, mapping->start, 0);
        if (!error)
            error = pagemap_each(process->pagemap, mapping->start, mapping->end, has_none, region, context);
        end = mapping->end;
    }
    return error ? error : region(context, end, PROCESS_ADDRESS_END, 0);
}
