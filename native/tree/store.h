/*
 * The destination's directory, as the frames of the stream (wire.h) make it.
 *
 * Each file has its number as a name in a second directory on the same file system, the staging one, until the end of the
 * last pass; its names in the directory are links to that. A directory is there only while it has no other name. Nobody
 * else changes either. Whatever the frames say, nothing outside the two is touched, no link is followed, and nothing is
 * opened that is neither file nor directory.
 *
 * Written data is read again: pages at once, the rest at the end of each pass; holes are the kernel's word. The
 * checksum of these reads is compared with the source's.
 */
#ifndef WHERRY_TREE_STORE_H
#define WHERRY_TREE_STORE_H

#include <stdbool.h>

#include "meta.h"
#include <wherry/page_sums.h>
#include "wire.h"

enum { STORE_DIRECTORIES = 64, STORE_FILES = 8, STORE_DEEPEST = 1024 };

struct item {
    uint64_t number;
    struct meta meta; /* points into `payload` */
    uint8_t *payload;
    uint64_t inode; /* its number here */
    uint64_t size;  /* of a file */
    struct page_sums sums;
    struct item *parent; /* of a directory that has a name; the root is its own */
    unsigned names;      /* of all but directories */
    char *name;
    struct item *next_touched, **touched_at; /* touched_at: the pointer to it in the list; NULL: it is not there */
    struct item *next; /* in its bucket */
    struct page_sum record, names_record; /* as they were read last */
    uint64_t names_count;
};

struct store_opened {
    uint64_t number; /* 0: none */
    int fd;
};

/* All zero but for the two descriptors: empty. */
struct store {
    int root, staging;
    struct item **items; /* by number; NULL: it is gone */
    size_t count, room;  /* count: behind the highest number */
    uint64_t left;       /* items that are not gone */
    struct item **buckets;
    size_t bucket_count;
    struct item *touched;
    struct store_opened directories[STORE_DIRECTORIES], files[STORE_FILES];
};

/* Carries out a frame that is neither R nor E. 0; -EPROTO: no such frame may come now; another negative errno. */
int store_apply(struct store *store, const struct wire_frame *frame, const uint8_t *payload);
/* The end of a pass: gives changed inodes their owner, mode, time, and reads them. 0 or negative errno. */
int store_settle(struct store *store);
/*
 * The end of the last pass, once it is settled: the staging directory is empty, and there are `count` inodes and names whose
 * records' sum is `all`; no file is open any more. 0; -EBADMSG: it is another tree; another negative errno.
 */
int store_finish(struct store *store, uint64_t count, struct page_sum all);
void store_free(struct store *store);

void store_close_files(struct store *store);

/* For settle.c. Takes an item that is touched from the list. */
void store_untouch(struct item *item);
/* Where an item is, by a descriptor that stays open for now and a name. 0 or negative errno. */
int store_place(struct store *store, const struct item *item, int *directory, char name[WIRE_NAME_MAX + 1]);
/* The name of an item in the staging directory. */
void store_staged_name(uint64_t number, char name[WIRE_NAME_MAX + 1]);
struct item *store_of_inode(const struct store *store, uint64_t inode);

#endif
