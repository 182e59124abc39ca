/* See record.h. */
#include "record.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

static struct page_sum summed(const void *fixed, size_t fixed_size, const void *rest, size_t size)
{
    XXH3_state_t state;
    XXH128_hash_t hash;

    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, fixed, fixed_size);
    XXH3_128bits_update(&state, rest, size);
    hash = XXH3_128bits_digest(&state);
    return (struct page_sum){hash.low64, hash.high64};
}

struct page_sum record_of_inode(uint64_t number, const void *meta, size_t meta_size, uint64_t size,
                                const struct page_sums *contents)
{
    struct page_sum sum = page_sums_digest(contents);
    const uint64_t fixed[] = {'I', number, size, sum.low, sum.high};

    return summed(fixed, sizeof(fixed), meta, meta_size);
}

struct page_sum record_of_name(uint64_t directory, uint64_t number, const char *name)
{
    const uint64_t fixed[] = {'L', directory, number};

    return summed(fixed, sizeof(fixed), name, strlen(name));
}

void record_add(struct page_sum *all, struct page_sum record)
{
    all->low += record.low;
    all->high += record.high;
}
