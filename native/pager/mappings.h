/* The mappings of a process, and which of them are pageable (stream.h). */
#ifndef WHERRY_PAGER_MAPPINGS_H
#define WHERRY_PAGER_MAPPINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mapping_memory { /* of which an object may be made (objects.h) */
    MEMORY_OTHER,
    MEMORY_SHARED,       /* shared, anonymous or of a memfd */
    MEMORY_SYSV,         /* a segment of System V */
    MEMORY_HUGE_PRIVATE, /* MAP_HUGETLB */
};

struct mapping {
    uint64_t start, end;
    bool pageable, executable, is_stack, writable;
    enum mapping_memory memory;
    uint64_t offset, device, inode; /* of the file, which memory may have too */
};

/* In the order of addresses. All zero: empty. */
struct mappings {
    struct mapping *list;
    size_t count, room;
};

/* A line of /proc/PID/maps, or such a line of smaps. 0, or -EPROTO: it is none. */
int mapping_parse(const char *line, struct mapping *mapping);
/* Applies a line `VmFlags:` of smaps to the mapping that it belongs to; other lines change nothing. */
void mapping_apply_flags(const char *line, struct mapping *mapping);

/* Reads them anew. 0 or negative errno; a process without memory (a zombie) has no mapping. */
int mappings_read(int pid, struct mappings *mappings);
void mappings_free(struct mappings *mappings);
/* The pageable mapping with the lowest end above `address`; NULL when there is none. */
const struct mapping *mappings_find_pageable(const struct mappings *mappings, uint64_t address);

#endif
