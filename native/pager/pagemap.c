/* See pagemap.h. */
#include "pagemap.h"

#include <errno.h>
#include <unistd.h>

enum { PAGE = 4096, ENTRIES = 8192 };

static uint64_t entries[ENTRIES];

/* How many entries, or negative errno. */
static int read_entries(int pagemap, uint64_t address, uint64_t count)
{
    size_t size = (count < ENTRIES ? count : ENTRIES) * sizeof(*entries);
    ssize_t got;

    do
        got = pread(pagemap, entries, size, (off_t)(address / PAGE * sizeof(*entries)));
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return -errno;
    return got ? (int)((size_t)got / sizeof(*entries)) : -ESRCH;
}

int pagemap_each(int pagemap, uint64_t start, uint64_t end, pagemap_filter filter,
                 int (*region)(void *context, uint64_t start, uint64_t end, uint64_t categories), void *context)
{
    uint64_t from = 0; /* where the run that is being gathered begins; 0: there is none */
    int answer;

    while (start < end) {
        int count = read_entries(pagemap, start, (end - start) / PAGE);

        if (count < 0)
            return count;
        for (int i = 0; i < count; i++, start += PAGE) {
            if (filter(entries[i])) {
                from = from ? from : start;
                continue;
            }
            if (from && (answer = region(context, from, start, 0)))
                return answer;
            from = 0;
        }
    }
    return from ? region(context, from, end, 0) : 0;
}
