/* A set of pages of one address space: a bit for each page, in blocks of 2 MiB where there are any. */
#ifndef WHERRY_PAGER_PAGE_SET_H
#define WHERRY_PAGER_PAGE_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PAGE_SET_WORDS = 8,
    PAGE_SET_BLOCK = PAGE_SET_WORDS * 64 * 4096, /* bytes */
};

struct page_block {
    uint64_t number; /* of the block: address / 2 MiB */
    uint64_t words[PAGE_SET_WORDS];
};

/* Blocks in the order of their numbers. All zero: empty. */
struct page_set {
    struct page_block *blocks;
    size_t count, room;
};

/* Both addresses are those of pages. 0 or -ENOMEM. */
int page_set_add(struct page_set *set, uint64_t start, uint64_t end);
/* Those of `others` between the two addresses. 0 or -ENOMEM. */
int page_set_add_common(struct page_set *set, const struct page_set *others, uint64_t start, uint64_t end);
/* 0 or -ENOMEM. */
int page_set_add_all(struct page_set *set, const struct page_set *others);
void page_set_remove_all(struct page_set *set, const struct page_set *others);
bool page_set_has(const struct page_set *set, uint64_t address);
/* Calls for each run of pages, up to the end of a block; stops at the first answer that is not 0, and returns it. */
int page_set_each(const struct page_set *set, int (*call)(void *context, uint64_t start, uint64_t end), void *context);
void page_set_clear(struct page_set *set);
void page_set_free(struct page_set *set);

#endif
