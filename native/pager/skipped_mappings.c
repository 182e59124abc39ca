/* See skipped_mappings.h. */
#include "skipped_mappings.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <isa-l/crc.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    MIN_SKIPPED = 1 << 20, /* bytes of a mapping: smaller ones cost little */
    MAX_READS = 100,       /* 1 ms apart: a thread that has just been frozen may not have stopped yet */
};

static struct page_set pointers; /* the pages with a stack pointer of the process at hand */

/* The stack pointer of a stopped thread. It is the last but one word: `NUMBER ARGUMENT... SP PC`, `-1 SP PC`. */
static int read_pointer(int pid, int tid, uint64_t *pointer)
{
    char path[64], line[512], *pc, *sp;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/syscall", pid, tid);
    for (int reads = 0; reads < MAX_READS; reads++) {
        struct timespec nap = {.tv_nsec = 1000000};
        FILE *file = fopen(path, "re");
        bool got = file && fgets(line, sizeof(line), file);

        if (file)
            fclose(file);
        if (!got)
            return -ESRCH;
        if ((pc = strrchr(line, ' '))) {
            *pc = '\0';
            if (!(sp = strrchr(line, ' ')))
                return -EPROTO;
            *pointer = strtoull(sp + 1, NULL, 16);
            return 0;
        }
        nanosleep(&nap, NULL); /* "running" */
    }
    return -EAGAIN;
}

/*
 * Into the stack of each thread CRIU writes when it restores, so it dumps the page of the stack pointer itself. When that
 * of any thread is not known, nothing of the process is skipped: any mapping might be a stack.
 */
static int read_pointers(int pid)
{
    char path[64];
    struct dirent *entry;
    int error = 0;
    DIR *list;

    page_set_clear(&pointers);
    snprintf(path, sizeof(path), "/proc/%d/task", pid);
    if (!(list = opendir(path)))
        return -errno;
    while (!error && (entry = readdir(list))) {
        uint64_t pointer;

        if (entry->d_name[0] == '.' || (error = read_pointer(pid, atoi(entry->d_name), &pointer)))
            continue;
        pointer &= ~UINT64_C(4095);
        error = page_set_add(&pointers, pointer, pointer + 4096);
    }
    closedir(list);
    return error;
}

static int is_within(void *context, uint64_t start, uint64_t end)
{
    const struct mapping *mapping = context;

    return start < mapping->end && end > mapping->start;
}

/* `object`: whose memory it is; NULL: that is tracked. */
static bool may_be_skipped(const struct mapping *mapping, const struct object *object)
{
    return (mapping->pageable || object) && !mapping->is_stack && mapping->end - mapping->start >= MIN_SKIPPED &&
           !page_set_each(&pointers, is_within, (void *)mapping);
}

static void list_process(FILE *text, const struct process *process, struct objects *objects, size_t *count)
{
    if (read_pointers(process->pid))
        return;
    for (size_t i = 0; i < process->mappings.count; i++) {
        const struct mapping *mapping = &process->mappings.list[i];
        struct object *object = NULL;

        if (mapping->memory == MEMORY_HUGE_PRIVATE)
            object = objects_find_private(objects, process->pid, mapping->start);
        if (!may_be_skipped(mapping, object))
            continue;
        if (object)
            object->skipped = true;
        fprintf(text, "%d %" PRIx64 " %" PRIx64 "\n", process->pid, mapping->start, mapping->end);
        ++*count;
    }
}

static void list_objects(FILE *text, const struct objects *objects, size_t *count)
{
    for (size_t i = 0; i < objects->count; i++) {
        const struct object *object = objects->list[i];

        if (!object->listed || object->memory == MEMORY_HUGE_PRIVATE)
            continue;
        fprintf(text, "%s %" PRIx64 " %" PRIx64 "\n", object->memory == MEMORY_SYSV ? "sysv" : "shared", object->device,
                object->inode);
        ++*count;
    }
}

static int write_file(const char *path, const char *text, size_t size, size_t count)
{
    uint32_t crc = ~crc32_iscsi((unsigned char *)text, (int)size, ~0U);
    char temporary[PATH_MAX];
    int error = 0;
    FILE *file;

    if (snprintf(temporary, sizeof(temporary), "%s.tmp", path) >= (int)sizeof(temporary))
        return -ENAMETOOLONG;
    if (!(file = fopen(temporary, "we")))
        return -errno;
    if (fprintf(file, "hidden %zu %08x\n", count, crc) < 0 || fwrite(text, 1, size, file) != size)
        error = -EIO;
    if (fclose(file) || (!error && rename(temporary, path)))
        error = -errno;
    if (error)
        unlink(temporary);
    return error;
}

int skipped_mappings_write(const char *path, struct processes *processes, size_t *count)
{
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    int error;

    if (!stream)
        return -errno;
    *count = 0;
    for (size_t i = 0; i < processes->count; i++)
        if (processes->list[i].listed)
            list_process(stream, &processes->list[i], &processes->objects, count);
    list_objects(stream, &processes->objects, count);
    error = ferror(stream) || fclose(stream) ? -ENOMEM : write_file(path, text, size, *count);
    free(text);
    return error;
}
