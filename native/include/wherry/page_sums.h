/*
 * page_sums: the contents of pages of 4096 bytes when they were last compared, as a 128-bit checksum (XXH3) of each. Of
 * 2^40 pages two with different contents have the same checksum with a probability of 2^-49.
 *
 * A page without a record is zero, as is a hole, and a page that has not come to the destination yet. In windows of 64
 * pages where any is not: 16 bytes a page in dense ones, at most 1 KiB for a page that is alone. Pages are numbers:
 * address or offset / 4096.
 *
 * Threads may call these side by side, as long as each works on pages, or windows, of its own.
 */
#ifndef WHERRY_PAGE_SUMS_H
#define WHERRY_PAGE_SUMS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PAGE_SUMS_PAGE = 4096, PAGE_SUMS_PAGES = 64, PAGE_SUMS_WINDOW = PAGE_SUMS_PAGES * PAGE_SUMS_PAGE };

struct page_sum {
    uint64_t low, high; /* both 0: the page is zero */
};

struct page_sums_window {
    uint64_t number; /* page / PAGE_SUMS_PAGES */
    struct page_sum *sums;
};

/* Windows in the order of their numbers. All zero: empty. */
struct page_sums {
    pthread_mutex_t lock; /* of the list of windows, not of the sums in them */
    struct page_sums_window *windows;
    size_t count, room;
    bool incomplete; /* page_sums_changed had no memory for a window: from then on every page counts as changed */
};

struct page_sum page_sum_of(const void *page);
static inline bool page_sum_is_zero(struct page_sum sum)
{
    return !sum.low && !sum.high;
}
static inline bool page_sum_equals(struct page_sum a, struct page_sum b)
{
    return a.low == b.low && a.high == b.high;
}

/* The sums of a window's pages; NULL: all are zero. They stay where they are until they are cleared. */
struct page_sum *page_sums_find(struct page_sums *sums, uint64_t window);
/* The same, made if there are none; NULL: there is no memory. */
struct page_sum *page_sums_make(struct page_sums *sums, uint64_t window);
/* Whether the page differs from its last given contents, or from zero without these. It is the last from now on. */
bool page_sums_changed(struct page_sums *sums, uint64_t page, const void *contents);
/* Pages from `from` up to, not with, `until` are zero from now on. Behind the last of them that was not; 0: all were. */
uint64_t page_sums_clear(struct page_sums *sums, uint64_t from, uint64_t until);
/* A checksum of all contents, independent of pages that were cleared on the way. */
struct page_sum page_sums_digest(const struct page_sums *sums);
void page_sums_free(struct page_sums *sums);

#endif
