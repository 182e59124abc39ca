/* See pagemap_tracker.h. */
#include "pagemap_tracker.h"

#include "pagemap.h"

static bool has_contents(uint64_t entry)
{
    return entry & (PAGEMAP_PRESENT | PAGEMAP_SWAPPED) && !(entry & PAGEMAP_GUARD);
}

static bool has_none(uint64_t entry)
{
    return !has_contents(entry);
}

int pagemap_see_contents(const struct process *process, tracker_region region, void *context)
{
    int error = 0;

    for (size_t i = 0; i < process->mappings.count && !error; i++) {
        const struct mapping *mapping = &process->mappings.list[i];

        if (mapping->pageable)
            error = pagemap_each(process->pagemap, mapping->start, mapping->end, has_contents, region, context);
    }
    return error;
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
