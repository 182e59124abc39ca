/*
 * Memory that no userfaultfd can follow from one process: memory that processes share (MAP_SHARED of no file, memfd,
 * System V), which others may write by mappings and descriptors of theirs, and private huge pages (MAP_HUGETLB).
 *
 *   object   number  0x80000001, ...        its `pid` in the stream, in which addresses count from its own beginning
 *            places  process, start, end, offset, ...      where it is mapped
 *            pages   that have been read; all others are zero, or holes, at the destination
 *            sums    of the sent contents of each page; only pages that differ are sent
 *
 * Each round reads all of an object that is not a hole and sends the changed pages; so does the last pass, while the
 * node is frozen, when nobody writes. Objects are found by their mappings, in each round anew; an object that has gone,
 * or cannot be carried (any more), ends in the stream as a process does. The last pass ends with a table of the carried
 * objects, which the destination fills when CRIU has made them, empty (object_fill.h). All others are in CRIU's images,
 * with their contents. These are:
 *
 *   smaller than 1 MiB          they cost CRIU little
 *   sealed against writing      the destination could not write into it either
 *   of huge pages, shared       hugetlbfs, whose files cannot be written
 *   of huge pages, after a fork the copies share pages, of which the destination might not have enough
 *   of huge pages, read-only    not every kernel lets another process write into them
 *   mapped by no process        open, or attached to nothing
 *   of /dev/shm and other files they are the node's tree, or deleted files, which CRIU carries
 */
#ifndef WHERRY_PAGER_OBJECTS_H
#define WHERRY_PAGER_OBJECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mappings.h"
#include "page_set.h"
#include <wherry/page_sums.h>

#define OBJECTS_TABLE STREAM_OBJECTS /* the number of the table, whose text is from address 0 on */

enum { OBJECT_PLACES = 16 }; /* that are noted */

struct place {
    int pid, pagemap; /* of the source's process */
    uint32_t ns_pid;
    uint64_t start, end, offset;
    bool writable;
};

struct object {
    uint32_t number;
    enum mapping_memory memory;
    uint64_t device, inode, start; /* start: of private memory only */
    bool listed;      /* by the last look; others are no longer carried */
    bool skipped;     /* of private memory: CRIU's dump will not see it */
    int file;         /* -1: read through the process */
    uint64_t size;
    struct place places[OBJECT_PLACES];
    size_t place_count;
    struct page_set pages, owed;
    struct page_sums sums;
};

/* All zero: none. */
struct objects {
    struct object **list;
    size_t count, room;
    uint32_t last_number;
    char *table; /* as it was sent */
    size_t table_room;
};

struct process;

/* Finds them anew, by the mappings of the listed processes as they were last looked at. 0 or -ENOMEM. */
int objects_look(struct objects *objects, const struct process *processes, size_t count);
/* Sends the changes, and the ends of objects that are not listed. 0 or negative errno. */
int objects_send(struct objects *objects);
/* Of frozen processes, after skipped_mappings_write: the same, and the table. */
int objects_send_last(struct objects *objects);
/* All of that has come. */
void objects_sent(struct objects *objects);
/* The private object at this address of a process; NULL: none. */
struct object *objects_find_private(struct objects *objects, int pid, uint64_t start);
/* Bytes that they take. */
uint64_t objects_size(const struct objects *objects);
/*
 * About how many bytes have changed since they were sent, by a look at some of them, which are sent again if they have.
 * After sender_finish. 0 or negative errno.
 */
int objects_measure(struct objects *objects, uint64_t *bytes);
void objects_free(struct objects *objects);

#endif
