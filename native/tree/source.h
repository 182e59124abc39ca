/*
 * The source's side of a node's files: passes over its directory (wire.h).
 *
 *   look        every directory and status; nothing is sent                    look.c
 *   structure   inodes that are gone, new or changed, names                    structure.c
 *   contents    every page of every file, compared with its sent contents      contents.c
 *
 * While the node runs its programs may do anything meanwhile: a pass never leaves the directory, waits for no device and
 * no FIFO, and its omissions and mistakes are put right by the next one. In the last pass nothing changes.
 *
 * On a disk the last pass reads only the files that may have changed since they were compared: 0024, "Files on a disk".
 *
 * All return 0 or negative errno; -ESTALE: in the last pass something changed.
 */
#ifndef WHERRY_TREE_SOURCE_H
#define WHERRY_TREE_SOURCE_H

#include <time.h>

#include "inodes.h"
#include "output.h"

enum { DEEPEST = 1000 }; /* directories in each other; each is a descriptor for a while */

struct source {
    int directory;
    struct inodes inodes;
    struct inode *root;
    struct output output;
    uint64_t pass, numbers; /* numbers: of inodes that were given */
    bool is_last;
    bool is_on_disk;        /* a write changes the file's time of change, once its page was written to the disk */
    bool compares_all;      /* whatever the times of change are */
    int64_t began, ahead;   /* wall clock at the pass's beginning in ns, and how far it was ahead of the monotonic one */
};

/* More than any kernel's clock of files is coarse, in ns. */
#define COARSE_NS INT64_C(100000000)

static inline int64_t nanoseconds(struct timespec time)
{
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

int look_at_all(struct source *source);
int send_structure(struct source *source);
/* The file has this size at the destination from now on. */
int send_size(struct source *source, struct inode *file, uint64_t size);
/* Starts the threads that compare. */
int contents_start(struct source *source);
int send_contents(struct source *source);

#endif
