/* See image_pages.h. */
#include "image_pages.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "criu_image.h"

#define RSEQ_BYTES 32u
/* Field numbers of core.proto, rseq.proto, mm.proto, vma.proto and pagemap.proto. */
enum { CORE_THREAD = 5, THREAD_RSEQ = 15, RSEQ_POINTER = 1, MM_VMA = 14, PAGEMAP_PAGES_ID = 1 };
enum { VMA_START = 1, VMA_END, VMA_OFFSET, VMA_SHARED, VMA_STATUS = 7 };
#define ANONYMOUS_SHARED (1u << 8) /* of a VMA's status; elsewhere the number in VMA_SHARED is a file's */

/* A part of shared memory as one process has it mapped. */
struct mapping {
    uint64_t shared, start, end, offset;
    uint32_t pid;
};

struct walk {
    pages_sink *sink;
    void *context;
    uint64_t *rseq;
    struct mapping *mappings;
    size_t rseqs, mapped;
};

struct place {
    struct extent extent;
    uint64_t offset;
};

/* A pagemap, and its file of pages, -1 where there is none. */
struct pagemap {
    struct place *places;
    size_t count;
    int pages;
};

/* Grows an array by doubling. */
static void *room(void *array, size_t count, size_t size)
{
    return count & (count - 1) ? array : realloc(array, (count ? count * 2 : 1) * size);
}

static int add_rseq(struct walk *walk, struct bytes message)
{
    struct field field;
    uint64_t *more;
    int found = field_find(message, CORE_THREAD, &field);

    if (found > 0)
        found = field_find(field.bytes, THREAD_RSEQ, &field);
    if (found > 0)
        found = field_find(field.bytes, RSEQ_POINTER, &field);
    if (found <= 0 || !field.value)
        return found < 0 ? found : 0;
    if (!(more = room(walk->rseq, walk->rseqs, sizeof(*more))))
        return -ENOMEM;
    walk->rseq = more;
    walk->rseq[walk->rseqs++] = field.value;
    return 0;
}

static int add_mapping(struct walk *walk, uint32_t pid, struct bytes vma)
{
    struct mapping mapping = {.pid = pid}, *more;
    struct field field;
    uint64_t status = 0;
    int taken;

    while ((taken = field_next(&vma, &field)) > 0) {
        if (field.number == VMA_START)
            mapping.start = field.value;
        else if (field.number == VMA_END)
            mapping.end = field.value;
        else if (field.number == VMA_OFFSET)
            mapping.offset = field.value;
        else if (field.number == VMA_SHARED)
            mapping.shared = field.value;
        else if (field.number == VMA_STATUS)
            status = field.value;
    }
    if (taken < 0 || !(status & ANONYMOUS_SHARED) || mapping.end < mapping.start)
        return taken;
    if (!(more = room(walk->mappings, walk->mapped, sizeof(*more))))
        return -ENOMEM;
    walk->mappings = more;
    walk->mappings[walk->mapped++] = mapping;
    return 0;
}

static int add_mappings(struct walk *walk, uint32_t pid, struct bytes message)
{
    struct field field;
    int taken;

    while ((taken = field_next(&message, &field)) > 0)
        if (field.number == MM_VMA && (taken = add_mapping(walk, pid, field.bytes)) < 0)
            break;
    return taken;
}

/* Threads and mappings, from core-*.img and mm-*.img. */
static int learn(struct walk *walk, int directory, const char *name)
{
    struct bytes image, left, message;
    int taken, is_core = !strncmp(name, "core-", 5);
    uint32_t pid;

    if (!is_core && sscanf(name, "mm-%u.img", &pid) != 1)
        return 0;
    if ((taken = image_load(directory, name, &image)))
        return taken;
    left = image_messages(image);
    while ((taken = image_next(&left, &message)) > 0)
        if ((taken = is_core ? add_rseq(walk, message) : add_mappings(walk, pid, message)) < 0)
            break;
    image_free(&image);
    return taken;
}

static void pagemap_close(struct pagemap *pagemap)
{
    if (pagemap->pages >= 0)
        close(pagemap->pages);
    free(pagemap->places);
}

static int pagemap_read(struct pagemap *pagemap, int directory, struct bytes image)
{
    struct bytes left = image_messages(image), message;
    struct field head;
    uint64_t offset = 0;
    char pages[32];
    int taken = image_next(&left, &message);

    if (taken <= 0 || (taken = field_find(message, PAGEMAP_PAGES_ID, &head)) <= 0)
        return taken ? taken : -EBADMSG;
    snprintf(pages, sizeof(pages), "pages-%u.img", (unsigned)head.value);
    pagemap->pages = openat(directory, pages, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (pagemap->pages < 0 && errno != ENOENT)
        return -errno;
    while ((taken = image_next(&left, &message)) > 0) {
        struct place place = {.offset = offset}, *more;

        if ((taken = extent_read(message, &place.extent)))
            return taken;
        if (place.extent.flags & PRESENT)
            offset += place.extent.pages * PAGE;
        if (!(more = room(pagemap->places, pagemap->count, sizeof(*more))))
            return -ENOMEM;
        pagemap->places = more;
        pagemap->places[pagemap->count++] = place;
    }
    return taken;
}

static int pagemap_open(int directory, const char *name, struct pagemap *pagemap)
{
    struct bytes image;
    int error = image_load(directory, name, &image);

    if (error)
        return error;
    error = pagemap_read(pagemap, directory, image);
    image_free(&image);
    return error;
}

/* Without the rseq areas that lie in it. */
static int give(struct walk *walk, uint32_t pid, uint64_t address, int file, uint64_t offset, uint64_t count)
{
    uint64_t end = address + count;
    int error = 0;

    while (!error && address < end) {
        uint64_t from = end, to = end;

        for (size_t i = 0; i < walk->rseqs; i++)
            if (walk->rseq[i] >= address && walk->rseq[i] < from)
                from = walk->rseq[i];
        if (end - from > RSEQ_BYTES)
            to = from + RSEQ_BYTES;
        if (from > address)
            error = walk->sink(walk->context, pid, address, file, offset, from - address);
        offset += to - address;
        address = to;
    }
    return error;
}

/* Shared memory is counted from its own beginning; a process that maps it stands for all. */
static int give_shared(struct walk *walk, uint64_t shared, uint64_t at, int file, uint64_t offset, uint64_t count)
{
    for (size_t i = 0; i < walk->mapped && count; i++) {
        const struct mapping *mapping = &walk->mappings[i];
        uint64_t size = mapping->end - mapping->start, part;
        int error;

        if (mapping->shared != shared || at < mapping->offset || at - mapping->offset >= size)
            continue;
        part = size - (at - mapping->offset);
        part = part < count ? part : count;
        if ((error = walk->sink(walk->context, mapping->pid, mapping->start + (at - mapping->offset), file, offset,
                                part)))
            return error;
        at += part, offset += part, count -= part;
        i = (size_t)-1; /* the rest may lie in a mapping before this one */
    }
    return 0;
}

/* All pages of pagemap-PID.img or pagemap-shmem-ID.img. */
static int walk_pagemap(struct walk *walk, int directory, const char *name)
{
    struct pagemap pagemap = {.pages = -1};
    uint64_t shared = 0; /* a segment of System V has its id, and the first one's is 0 */
    uint32_t pid = 0;
    int error, is_process = sscanf(name, "pagemap-%u.img", &pid) == 1;

    if (!is_process && sscanf(name, "pagemap-shmem-%lu.img", &shared) != 1)
        return 0;
    error = pagemap_open(directory, name, &pagemap);
    for (size_t i = 0; !error && i < pagemap.count; i++) {
        const struct extent *extent = &pagemap.places[i].extent;
        uint64_t offset = pagemap.places[i].offset, count = extent->pages * PAGE;

        if (extent->flags == LAZY)
            continue; /* wherry-pager carries it, and checks it on arrival */
        if (!(extent->flags & PRESENT) || pagemap.pages < 0)
            error = -EBADMSG;
        else if (is_process)
            error = give(walk, pid, extent->address, pagemap.pages, offset, count);
        else
            error = give_shared(walk, shared, extent->address, pagemap.pages, offset, count);
    }
    pagemap_close(&pagemap);
    return error;
}

static int each_name(struct walk *walk, int directory, int (*act)(struct walk *, int, const char *))
{
    int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), error = 0;
    DIR *list = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *entry;

    if (!list)
        return -errno;
    while (!error && (entry = readdir(list)))
        error = act(walk, directory, entry->d_name);
    closedir(list);
    return error;
}

int pages_each(int directory, pages_sink *sink, void *context)
{
    struct walk walk = {.sink = sink, .context = context};
    int error = each_name(&walk, directory, learn);

    if (!error)
        error = each_name(&walk, directory, walk_pagemap);
    free(walk.rseq);
    free(walk.mappings);
    return error;
}
