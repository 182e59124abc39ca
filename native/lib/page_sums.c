#include <wherry/page_sums.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdlib.h>
#include <string.h>

static const struct page_sum NOTHING[PAGE_SUMS_PAGES];

struct page_sum page_sum_of(const void *page)
{
    static const uint8_t zero[PAGE_SUMS_PAGE];
    XXH128_hash_t hash;

    if (!memcmp(page, zero, 64) && !memcmp(page, zero, PAGE_SUMS_PAGE))
        return (struct page_sum){0};
    hash = XXH3_128bits(page, PAGE_SUMS_PAGE);
    return (struct page_sum){hash.low64, hash.high64};
}

/* The index of the first window whose number is not smaller. */
static size_t find(const struct page_sums *sums, uint64_t number)
{
    size_t low = 0, high = sums->count;

    if (high && sums->windows[high - 1].number < number)
        return high; /* mostly they come in order */
    while (low < high) {
        size_t middle = (low + high) / 2;

        if (sums->windows[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct page_sum *found(const struct page_sums *sums, size_t at, uint64_t number)
{
    return at < sums->count && sums->windows[at].number == number ? sums->windows[at].sums : NULL;
}

struct page_sum *page_sums_find(struct page_sums *sums, uint64_t window)
{
    struct page_sum *there;

    pthread_mutex_lock(&sums->lock);
    there = found(sums, find(sums, window), window);
    pthread_mutex_unlock(&sums->lock);
    return there;
}

static struct page_sum *insert(struct page_sums *sums, size_t at, uint64_t number)
{
    struct page_sum *made;

    if (sums->count == sums->room) {
        size_t room = sums->room ? 2 * sums->room : 1; /* most files are small */
        struct page_sums_window *more = realloc(sums->windows, room * sizeof(*more));

        if (!more)
            return NULL;
        sums->windows = more;
        sums->room = room;
    }
    if (!(made = calloc(PAGE_SUMS_PAGES, sizeof(*made))))
        return NULL;
    memmove(&sums->windows[at + 1], &sums->windows[at], (sums->count - at) * sizeof(sums->windows[0]));
    sums->count++;
    sums->windows[at] = (struct page_sums_window){number, made};
    return made;
}

struct page_sum *page_sums_make(struct page_sums *sums, uint64_t window)
{
    struct page_sum *there;
    size_t at;

    pthread_mutex_lock(&sums->lock);
    at = find(sums, window);
    if (!(there = found(sums, at, window)))
        there = insert(sums, at, window);
    pthread_mutex_unlock(&sums->lock);
    return there;
}

bool page_sums_changed(struct page_sums *sums, uint64_t page, const void *contents)
{
    struct page_sum now = page_sum_of(contents), *there;
    uint64_t window = page / PAGE_SUMS_PAGES;
    bool is_zero = page_sum_is_zero(now), changed = false;

    if ((there = is_zero ? page_sums_find(sums, window) : page_sums_make(sums, window))) {
        there += page % PAGE_SUMS_PAGES;
        changed = !page_sum_equals(*there, now);
        *there = now;
    } else if (!is_zero) {
        __atomic_store_n(&sums->incomplete, true, __ATOMIC_RELAXED);
    }
    return changed || __atomic_load_n(&sums->incomplete, __ATOMIC_RELAXED);
}

/* Clears the part of a window; behind the last page that was not zero, or 0. */
static uint64_t clear_part(const struct page_sums_window *window, uint64_t from, uint64_t until)
{
    uint64_t first = window->number * PAGE_SUMS_PAGES, last = 0;

    for (uint64_t page = from > first ? from : first; page < until && page < first + PAGE_SUMS_PAGES; page++) {
        if (!page_sum_is_zero(window->sums[page - first]))
            last = page + 1;
        window->sums[page - first] = (struct page_sum){0};
    }
    return last;
}

uint64_t page_sums_clear(struct page_sums *sums, uint64_t from, uint64_t until)
{
    uint64_t last = 0;
    size_t at, kept;

    if (from >= until)
        return 0;
    pthread_mutex_lock(&sums->lock);
    kept = at = find(sums, from / PAGE_SUMS_PAGES);
    for (; at < sums->count && sums->windows[at].number * PAGE_SUMS_PAGES < until; at++) {
        struct page_sums_window window = sums->windows[at];
        uint64_t first = window.number * PAGE_SUMS_PAGES, found = clear_part(&window, from, until);

        last = found ? found : last;
        if (from <= first && first + PAGE_SUMS_PAGES <= until)
            free(window.sums);
        else
            sums->windows[kept++] = window;
    }
    if (kept != at)
        memmove(&sums->windows[kept], &sums->windows[at], (sums->count - at) * sizeof(sums->windows[0]));
    sums->count -= at - kept;
    pthread_mutex_unlock(&sums->lock);
    return last;
}

struct page_sum page_sums_digest(const struct page_sums *sums)
{
    XXH3_state_t state;
    XXH128_hash_t hash;

    XXH3_128bits_reset(&state);
    for (size_t i = 0; i < sums->count; i++) {
        if (!memcmp(sums->windows[i].sums, NOTHING, sizeof(NOTHING)))
            continue;
        XXH3_128bits_update(&state, &sums->windows[i].number, sizeof(sums->windows[i].number));
        XXH3_128bits_update(&state, sums->windows[i].sums, sizeof(NOTHING));
    }
    hash = XXH3_128bits_digest(&state);
    return (struct page_sum){hash.low64, hash.high64};
}

void page_sums_free(struct page_sums *sums)
{
    for (size_t i = 0; i < sums->count; i++)
        free(sums->windows[i].sums);
    free(sums->windows);
    *sums = (struct page_sums){0};
}
