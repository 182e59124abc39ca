/*
 * The part of a node that its destination gets after the commit (post-copy): pages of frozen processes that were found
 * written at last.
 *
 *   last pass   the pages are noted, and listed in M frames
 *   served      a page that is asked for goes first, with its neighbours; all else goes when the node runs, in the
 *               order of addresses, from where was asked last
 *
 * A page is taken out of the set before it is sent, so it is sent once; a request for a page that is gone is not answered.
 */
#ifndef WHERRY_PAGER_LATER_H
#define WHERRY_PAGER_LATER_H

#include "page_set.h"
#include "tracker.h"

struct later_process {
    const struct process *process; /* whose descriptors stay open */
    struct page_set pages;
    size_t at; /* the next block */
};

/* All zero: none. */
struct later {
    struct later_process *list;
    size_t count, turn;
    uint64_t left; /* pages */
};

/* Pages of a process, which come after those of the process before. 0 or -ENOMEM. */
int later_add(struct later *later, const struct process *process, uint64_t start, uint64_t end);
/* Tells the destination of all of them, behind the frames that the sender has. 0 or negative errno. */
int later_announce(struct later *later);
/*
 * After the last pass, until the destination needs nothing any more. Only pages that are asked for are sent until
 * something, or the end, is read from `input`. 0 or negative errno; -ESRCH: a page cannot be read.
 */
int later_serve(struct later *later, int input);
void later_free(struct later *later);

#endif
