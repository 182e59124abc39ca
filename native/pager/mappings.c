/* See mappings.h. */
#include "mappings.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static bool is_of_kernel(const char *name)
{
    return !strncmp(name, "[vdso", 5) || !strncmp(name, "[vvar", 5) || !strncmp(name, "[vsyscall", 9);
}

/* Of the file system that the kernel itself keeps shared memory in; no file with a path is there. 0: not known. */
static uint64_t device_of_memory(void)
{
    static uint64_t device;
    struct stat status;
    int file;

    if (device || (file = memfd_create("", MFD_CLOEXEC)) < 0)
        return device;
    if (!fstat(file, &status))
        device = status.st_dev;
    close(file);
    return device;
}

static enum mapping_memory memory_of(const struct mapping *mapping, char sharing, const char *name)
{
    if (sharing == 'p')
        return strcmp(name, "/anon_hugepage (deleted)\n") ? MEMORY_OTHER : MEMORY_HUGE_PRIVATE;
    if (!mapping->device || mapping->device != device_of_memory())
        return MEMORY_OTHER;
    return strncmp(name, "/SYSV", 5) ? MEMORY_SHARED : MEMORY_SYSV;
}

int mapping_parse(const char *line, struct mapping *mapping)
{
    unsigned int major, minor;
    char access[5];
    int name = 0;

    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64 " %n", &mapping->start, &mapping->end,
               access, &mapping->offset, &major, &minor, &mapping->inode, &name) != 7 ||
        mapping->start >= mapping->end || strlen(access) != 4)
        return -EPROTO;
    mapping->device = makedev(major, minor);
    mapping->pageable = access[3] == 'p' && !mapping->inode && !mapping->device && !is_of_kernel(line + name);
    mapping->executable = access[2] == 'x' && access[0] == 'r';
    mapping->writable = access[1] == 'w';
    mapping->is_stack = !strncmp(line + name, "[stack]", 7);
    mapping->memory = memory_of(mapping, access[3], line + name);
    return 0;
}

void mapping_apply_flags(const char *line, struct mapping *mapping)
{
    if (!strncmp(line, "VmFlags:", 8) && (strstr(line, " lo") || strstr(line, " ht")))
        mapping->pageable = false;
}

/* Whether it has locked any memory. Only then smaps is needed, which takes 9 ms/GB. */
static bool has_locked(int pid)
{
    char path[64], line[128];
    long locked = 0;
    FILE *status;

    snprintf(path, sizeof(path), "/proc/%d/status", pid);
    if (!(status = fopen(path, "re")))
        return false;
    while (fgets(line, sizeof(line), status) && sscanf(line, "VmLck: %ld", &locked) != 1)
        continue;
    fclose(status);
    return locked > 0;
}

static int append(struct mappings *mappings, const struct mapping *mapping)
{
    if (mappings->count == mappings->room) {
        size_t room = mappings->room ? 2 * mappings->room : 64;
        struct mapping *more = realloc(mappings->list, room * sizeof(*more));

        if (!more)
            return -ENOMEM;
        mappings->list = more;
        mappings->room = room;
    }
    mappings->list[mappings->count++] = *mapping;
    return 0;
}

int mappings_read(int pid, struct mappings *mappings)
{
    struct mapping mapping;
    char path[64], line[4352]; /* the name of a file may have 4096 */
    int error = 0;
    FILE *file;

    mappings->count = 0;
    snprintf(path, sizeof(path), "/proc/%d/%s", pid, has_locked(pid) ? "smaps" : "maps");
    if (!(file = fopen(path, "re")))
        return -errno;
    while (!error && fgets(line, sizeof(line), file)) {
        if (mappings->count)
            mapping_apply_flags(line, &mappings->list[mappings->count - 1]);
        if (!mapping_parse(line, &mapping) && !strstr(line, "[vsyscall]"))
            error = append(mappings, &mapping);
    }
    fclose(file);
    return error;
}

void mappings_free(struct mappings *mappings)
{
    free(mappings->list);
    *mappings = (struct mappings){0};
}

const struct mapping *mappings_find_pageable(const struct mappings *mappings, uint64_t address)
{
    size_t low = 0, high = mappings->count;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (mappings->list[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    while (low < mappings->count && !mappings->list[low].pageable)
        low++;
    return low < mappings->count ? &mappings->list[low] : NULL;
}
