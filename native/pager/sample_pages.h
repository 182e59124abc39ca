/*
 * How much of a node's memory changes, estimated from some of its pages where writes are not tracked for less than
 * reading all of it (tracking.h): one page of each so many is read again and again, 64 MiB of them at most.
 */
#ifndef WHERRY_PAGER_SAMPLE_PAGES_H
#define WHERRY_PAGER_SAMPLE_PAGES_H

#include <wherry/page_sums.h>
#include "processes.h"

struct sampled_page;

/* All zero: nothing is sampled. */
struct sample_pages {
    struct sampled_page *list;
    size_t count, process; /* of the list; the process that is being gone through */
    uint64_t present;      /* bytes with contents at the beginning */
    uint64_t step, seen, next, random;
    struct page_sums sums; /* by the place in the list */
};

/* Chooses pages of processes that rounds_look has seen, and reads them. 0 or negative errno. */
int sample_pages_begin(struct sample_pages *sample, const struct processes *processes);
/* About how many bytes were written since, new memory included; after rounds_look. 0 or negative errno. */
int sample_pages_look(struct sample_pages *sample, const struct processes *processes, uint64_t *bytes);
void sample_pages_free(struct sample_pages *sample);

#endif
