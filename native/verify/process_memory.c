/* See process_memory.h. */
#include "process_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include <wherry/own_pages.h>

static struct task *tasks;
static size_t tasks_count;

/* The last number of NSpid: the process as its innermost namespace counts. 0: gone. */
static uint32_t ns_pid_of(int pid)
{
    char line[256], path[64];
    uint32_t number = 0;
    FILE *status;

    snprintf(path, sizeof(path), "/proc/%d/status", pid);
    if (!(status = fopen(path, "re")))
        return 0;
    while (fgets(line, sizeof(line), status))
        if (!strncmp(line, "NSpid:", 6)) {
            number = (uint32_t)strtoul(strrchr(line, '\t') + 1, NULL, 10);
            break;
        }
    fclose(status);
    return number;
}

int tasks_read(const char *path, int flags)
{
    FILE *list = fopen(path, "re");
    char memory[64], pagemap[64];
    struct task *more;
    int pid;

    if (!list)
        return -errno;
    while (fscanf(list, "%d", &pid) == 1 && (more = realloc(tasks, (tasks_count + 1) * sizeof(*tasks)))) {
        snprintf(memory, sizeof(memory), "/proc/%d/mem", pid);
        snprintf(pagemap, sizeof(pagemap), "/proc/%d/pagemap", pid);
        tasks = more;
        tasks[tasks_count++] = (struct task){ns_pid_of(pid), pid, open(memory, flags | O_CLOEXEC),
                                             open(pagemap, O_RDONLY | O_CLOEXEC)};
    }
    fclose(list);
    return 0;
}

const struct task *tasks_find(uint32_t inside)
{
    for (size_t i = 0; i < tasks_count; i++)
        if (tasks[i].inside == inside)
            return &tasks[i];
    return NULL;
}

/*
 * The contents of a run of pages, in the way that leaves shared ones shared (own_pages.h). Bytes, 0 or -1 as read(2).
 */
static ssize_t read_run(const struct task *task, uint64_t address, void *bytes, size_t size, bool own)
{
    struct iovec here = {bytes, size}, there = {(void *)address, size};
    ssize_t got = own ? process_vm_readv(task->pid, &here, 1, &there, 1, 0) : -1;

    return got > 0 ? got : pread(task->memory, bytes, size, (off_t)address); /* whatever the protection of a mapping */
}

int memory_read(const struct task *task, uint64_t address, void *bytes, size_t count)
{
    struct own_pages look = {.pagemap = task->pagemap};
    uint64_t end = address + count;

    while (address < end) {
        uint64_t page = address - address % OWN_PAGES_PAGE, until;
        uint32_t pages = (uint32_t)((end - page + OWN_PAGES_PAGE - 1) / OWN_PAGES_PAGE);
        ssize_t got;
        bool own;

        until = page + (uint64_t)own_pages_run(&look, page, pages, end, &own) * OWN_PAGES_PAGE;
        got = read_run(task, address, bytes, (until < end ? until : end) - address, own);
        if (got <= 0)
            return got ? -errno : -ENODATA;
        bytes = (char *)bytes + got;
        address += (uint64_t)got;
    }
    return 0;
}

int memory_write(const struct task *task, uint64_t address, const void *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        ssize_t put = pwrite(task->memory, (const char *)bytes + done, count - done, (off_t)(address + done));

        if (put <= 0)
            return put ? -errno : -ENODATA;
        done += (size_t)put;
    }
    return 0;
}
