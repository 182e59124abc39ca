/*
 * The source's table of the destination's contents: every inode that was found, its sent parts, and the names in each
 * directory.
 */
#ifndef WHERRY_TREE_INODES_H
#define WHERRY_TREE_INODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "meta.h"
#include <wherry/page_sums.h>

struct inode;

struct name {
    size_t at; /* in the bytes of all */
    struct inode *inode;
};

/* The names in a directory, in their order once they were sorted. All zero: none. */
struct names {
    struct bytes all;
    struct name *list;
    size_t count, room;
};

struct inode {
    uint64_t number;       /* 0: the destination does not know it */
    uint64_t seen;         /* the last pass in which it was found */
    uint64_t compared;     /* the last pass in which its contents were */
    struct timespec changed; /* its time of change then */
    bool is_settled;       /* every later write has a later one (on a disk) */
    struct stat status;    /* when it was found last */
    struct bytes meta;     /* its attributes by that */
    bool is_fresh;         /* its status may not show a change that comes now, as clocks are coarse */
    bool is_sent;          /* the destination has `meta` */
    uint64_t size;         /* of a file, at the destination */
    struct page_sums sums;      /* the same */
    struct names known;    /* of a directory, at the destination */
    struct names found;    /* in this pass */
    struct inode *next;    /* in its bucket */
};

/* All zero: empty. */
struct inodes {
    struct inode **list; /* as they were found */
    size_t count, room;
    struct inode **buckets;
    size_t bucket_count;
};

/* The inode of this status, made if it is new. NULL: there is no memory. */
struct inode *inodes_take(struct inodes *inodes, const struct stat *status);
/* An inode with its identity from now on is another one. It stays in the list. */
void inodes_forget(struct inodes *inodes, const struct inode *inode);
/* Frees inodes that were not seen in this pass. */
void inodes_sweep(struct inodes *inodes, uint64_t pass);

static inline const char *name_text(const struct names *names, const struct name *name)
{
    return (const char *)names->all.data + name->at;
}
/* 0, or -ENOMEM, -EOVERFLOW: no directory has so many. */
int names_add(struct names *names, const char *text, struct inode *inode);
void names_sort(struct names *names);
void names_free(struct names *names);

#endif
