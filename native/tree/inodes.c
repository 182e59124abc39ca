/* See inodes.h. */
#include "inodes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 256, NAMES_MAX = 1 << 24 };

static size_t bucket_of(const struct inodes *inodes, const struct stat *status)
{
    uint64_t mixed = ((uint64_t)status->st_ino ^ (uint64_t)status->st_dev << 40) * UINT64_C(0x9e3779b97f4a7c15);

    return (size_t)(mixed >> 32) & (inodes->bucket_count - 1);
}

static int widen(struct inodes *inodes)
{
    size_t count = inodes->bucket_count ? 2 * inodes->bucket_count : BUCKETS;
    struct inode **old = inodes->buckets, **buckets = calloc(count, sizeof(*buckets));
    size_t old_count = inodes->bucket_count;

    if (!buckets)
        return -ENOMEM;
    inodes->buckets = buckets, inodes->bucket_count = count;
    for (size_t i = 0; i < old_count; i++)
        while (old[i]) {
            struct inode *inode = old[i], **bucket = &buckets[bucket_of(inodes, &inode->status)];

            old[i] = inode->next;
            inode->next = *bucket;
            *bucket = inode;
        }
    free(old);
    return 0;
}

static int make_room(struct inodes *inodes)
{
    struct inode **more;
    size_t room;

    if (inodes->count >= inodes->bucket_count && widen(inodes))
        return -ENOMEM;
    if (inodes->count < inodes->room)
        return 0;
    room = inodes->room ? 2 * inodes->room : BUCKETS;
    if (!(more = realloc(inodes->list, room * sizeof(*more))))
        return -ENOMEM;
    inodes->list = more, inodes->room = room;
    return 0;
}

/* Of another type it is another one, whose predecessor is gone. */
static bool is(const struct inode *inode, const struct stat *status)
{
    return inode->status.st_ino == status->st_ino && inode->status.st_dev == status->st_dev &&
           (inode->status.st_mode & S_IFMT) == (status->st_mode & S_IFMT);
}

struct inode *inodes_take(struct inodes *inodes, const struct stat *status)
{
    struct inode *inode, **bucket;

    if (make_room(inodes))
        return NULL;
    bucket = &inodes->buckets[bucket_of(inodes, status)];
    for (inode = *bucket; inode; inode = inode->next)
        if (is(inode, status))
            return inode;
    if (!(inode = calloc(1, sizeof(*inode))))
        return NULL;
    inode->status = *status;
    inode->is_fresh = true;
    inode->next = *bucket;
    *bucket = inode;
    inodes->list[inodes->count++] = inode;
    return inode;
}

void inodes_forget(struct inodes *inodes, const struct inode *inode)
{
    struct inode **at = &inodes->buckets[bucket_of(inodes, &inode->status)];

    while (*at && *at != inode)
        at = &(*at)->next;
    if (*at)
        *at = inode->next;
}

static void inode_free(struct inode *inode)
{
    page_sums_free(&inode->sums);
    names_free(&inode->known);
    names_free(&inode->found);
    free(inode->meta.data);
    free(inode);
}

void inodes_sweep(struct inodes *inodes, uint64_t pass)
{
    size_t kept = 0;

    for (size_t i = 0; i < inodes->count; i++) {
        struct inode *inode = inodes->list[i];

        if (inode->seen == pass) {
            inodes->list[kept++] = inode;
            continue;
        }
        inodes_forget(inodes, inode);
        inode_free(inode);
    }
    inodes->count = kept;
}

int names_add(struct names *names, const char *text, struct inode *inode)
{
    size_t at = names->all.count;

    if (names->count == NAMES_MAX)
        return -EOVERFLOW; /* they are made as fast as they are read */
    if (names->count == names->room) {
        size_t room = names->room ? 2 * names->room : 8;
        struct name *more = realloc(names->list, room * sizeof(*more));

        if (!more)
            return -ENOMEM;
        names->list = more, names->room = room;
    }
    if (bytes_add(&names->all, text, strlen(text) + 1))
        return -ENOMEM;
    names->list[names->count++] = (struct name){at, inode};
    return 0;
}

static int compare(const void *a, const void *b, void *names)
{
    return strcmp(name_text(names, a), name_text(names, b));
}

void names_sort(struct names *names)
{
    if (names->count)
        qsort_r(names->list, names->count, sizeof(*names->list), compare, names);
}

void names_free(struct names *names)
{
    free(names->all.data);
    free(names->list);
    *names = (struct names){0};
}
