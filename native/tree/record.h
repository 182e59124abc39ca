/*
 * A checksum of a whole tree, the same at both ends and in whatever order it is taken: that of a record for each inode,
 * with its properties, its size and the checksums of its contents, and of one for each name in a directory.
 */
#ifndef WHERRY_TREE_RECORD_H
#define WHERRY_TREE_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/page_sums.h>

/* Of inode `number`, of which `meta` is the payload (meta.h), with a file's size and contents. */
struct page_sum record_of_inode(uint64_t number, const void *meta, size_t meta_size, uint64_t size,
                                const struct page_sums *contents);
/* Of a name that `directory` has for inode `number`. */
struct page_sum record_of_name(uint64_t directory, uint64_t number, const char *name);
void record_add(struct page_sum *all, struct page_sum record);

#endif
