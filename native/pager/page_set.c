/* See page_set.h. */
#include "page_set.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, WORD = 64, BLOCK_PAGES = PAGE_SET_WORDS * WORD };

/* The index of the first block whose number is not smaller. */
static size_t find(const struct page_set *set, uint64_t number)
{
    size_t low = 0, high = set->count;

    if (high && set->blocks[high - 1].number < number)
        return high; /* mostly they come in order */
    while (low < high) {
        size_t middle = (low + high) / 2;

        if (set->blocks[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct page_block *found_or_made(struct page_set *set, uint64_t number)
{
    size_t at = find(set, number);

    if (at < set->count && set->blocks[at].number == number)
        return &set->blocks[at];
    if (set->count == set->room) {
        size_t room = set->room ? 2 * set->room : 16;
        struct page_block *more = realloc(set->blocks, room * sizeof(*more));

        if (!more)
            return NULL;
        set->blocks = more;
        set->room = room;
    }
    memmove(&set->blocks[at + 1], &set->blocks[at], (set->count - at) * sizeof(set->blocks[0]));
    set->count++;
    set->blocks[at] = (struct page_block){.number = number};
    return &set->blocks[at];
}

/* The bits of a word of the block for the pages first..last of it. */
static uint64_t bits(unsigned int word, unsigned int first, unsigned int last)
{
    unsigned int low = word == first / WORD ? first % WORD : 0, high = word == last / WORD ? last % WORD : WORD - 1;

    return word < first / WORD || word > last / WORD ? 0 : (UINT64_MAX << low) & (UINT64_MAX >> (WORD - 1 - high));
}

int page_set_add(struct page_set *set, uint64_t start, uint64_t end)
{
    uint64_t page = start / PAGE, last = end / PAGE;

    while (page < last) {
        struct page_block *block = found_or_made(set, page / BLOCK_PAGES);
        uint64_t limit = (page / BLOCK_PAGES + 1) * BLOCK_PAGES, until = last < limit ? last : limit;

        if (!block)
            return -ENOMEM;
        for (unsigned int word = 0; word < PAGE_SET_WORDS; word++)
            block->words[word] |= bits(word, page % BLOCK_PAGES, (until - 1) % BLOCK_PAGES);
        page = until;
    }
    return 0;
}

int page_set_add_common(struct page_set *set, const struct page_set *others, uint64_t start, uint64_t end)
{
    uint64_t first = start / PAGE, last = end / PAGE - 1;

    if (start >= end)
        return 0;
    for (size_t i = find(others, first / BLOCK_PAGES); i < others->count; i++) {
        const struct page_block *other = &others->blocks[i];
        uint64_t base = other->number * BLOCK_PAGES;
        unsigned int from = first > base ? (unsigned int)(first - base) : 0;
        unsigned int to = last < base + BLOCK_PAGES ? (unsigned int)(last - base) : BLOCK_PAGES - 1;
        struct page_block *block;

        if (base > last)
            break;
        if (!(block = found_or_made(set, other->number)))
            return -ENOMEM;
        for (unsigned int word = 0; word < PAGE_SET_WORDS; word++)
            block->words[word] |= other->words[word] & bits(word, from, to);
    }
    return 0;
}

int page_set_add_all(struct page_set *set, const struct page_set *others)
{
    for (size_t i = 0; i < others->count; i++) {
        struct page_block *block = found_or_made(set, others->blocks[i].number);

        if (!block)
            return -ENOMEM;
        for (int word = 0; word < PAGE_SET_WORDS; word++)
            block->words[word] |= others->blocks[i].words[word];
    }
    return 0;
}

void page_set_remove_all(struct page_set *set, const struct page_set *others)
{
    size_t other = 0, kept = 0;

    for (size_t i = 0; i < set->count; i++) {
        struct page_block block = set->blocks[i];
        uint64_t any = 0;

        while (other < others->count && others->blocks[other].number < block.number)
            other++;
        for (int word = 0; word < PAGE_SET_WORDS; word++) {
            if (other < others->count && others->blocks[other].number == block.number)
                block.words[word] &= ~others->blocks[other].words[word];
            any |= block.words[word];
        }
        if (any)
            set->blocks[kept++] = block;
    }
    set->count = kept;
}

static bool has(const struct page_block *block, unsigned int page)
{
    return block->words[page / WORD] >> page % WORD & 1;
}

bool page_set_has(const struct page_set *set, uint64_t address)
{
    uint64_t page = address / PAGE;
    size_t at = find(set, page / BLOCK_PAGES);

    return at < set->count && set->blocks[at].number == page / BLOCK_PAGES && has(&set->blocks[at], page % BLOCK_PAGES);
}

int page_set_each(const struct page_set *set, int (*call)(void *context, uint64_t start, uint64_t end), void *context)
{
    for (size_t i = 0; i < set->count; i++) {
        const struct page_block *block = &set->blocks[i];
        uint64_t base = block->number * BLOCK_PAGES;

        for (unsigned int first = 0, last; first < BLOCK_PAGES; first = last + 1) {
            int answer;

            for (last = first; last < BLOCK_PAGES && has(block, last); last++)
                continue;
            if (last > first && (answer = call(context, (base + first) * PAGE, (base + last) * PAGE)))
                return answer;
        }
    }
    return 0;
}

void page_set_clear(struct page_set *set)
{
    set->count = 0;
}

void page_set_free(struct page_set *set)
{
    free(set->blocks);
    *set = (struct page_set){0};
}
