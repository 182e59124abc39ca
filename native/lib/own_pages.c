/* See own_pages.h. */
#include <wherry/own_pages.h>

#include <stddef.h>
#include <unistd.h>

/* False: it could not be read. */
static bool look_at(struct own_pages *look, uint64_t address, uint64_t end)
{
    uint64_t count = end > address ? (end - address) / OWN_PAGES_PAGE : 1;
    ssize_t got;

    if (count > OWN_PAGES_LOOK)
        count = OWN_PAGES_LOOK;
    got = pread(look->pagemap, look->entries, count * sizeof(*look->entries),
                (off_t)(address / OWN_PAGES_PAGE * sizeof(*look->entries)));
    look->first = address;
    look->count = got > 0 ? (uint32_t)((size_t)got / sizeof(*look->entries)) : 0;
    return look->count;
}

static bool is_own(struct own_pages *look, uint64_t address, uint64_t end)
{
    if (address < look->first || address >= look->first + (uint64_t)look->count * OWN_PAGES_PAGE)
        if (!look_at(look, address, end))
            return false;
    return (look->entries[(address - look->first) / OWN_PAGES_PAGE] & (PAGEMAP_PRESENT | PAGEMAP_EXCLUSIVE)) ==
           (PAGEMAP_PRESENT | PAGEMAP_EXCLUSIVE);
}

uint32_t own_pages_run(struct own_pages *look, uint64_t address, uint32_t pages, uint64_t end, bool *own)
{
    uint32_t run = 1;

    if (look->pagemap < 0) {
        *own = true;
        return pages;
    }
    *own = is_own(look, address, end);
    while (run < pages && is_own(look, address + (uint64_t)run * OWN_PAGES_PAGE, end) == *own)
        run++;
    return run;
}
