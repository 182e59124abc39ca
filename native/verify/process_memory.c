/* See process_memory.h. */
#include "process_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static struct task *tasks;
static size_t tasks_count;

/* The last number of NSpid: the process as its innermost namespace counts. 0: gone. */
static uint32_t number_inside(int pid)
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
    struct task *more;
    char memory[64];
    int pid;

    if (!list)
        return -errno;
    while (fscanf(list, "%d", &pid) == 1 && (more = realloc(tasks, (tasks_count + 1) * sizeof(*tasks)))) {
        snprintf(memory, sizeof(memory), "/proc/%d/mem", pid);
        tasks = more;
        tasks[tasks_count++] = (struct task){number_inside(pid), pid, open(memory, flags | O_CLOEXEC)};
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

/* process_vm_readv(2) is several times as fast as /proc, but keeps to the protection of a mapping. */
int memory_read(const struct task *task, uint64_t address, void *bytes, size_t count)
{
    for (size_t have = 0; have < count;) {
        struct iovec here = {(char *)bytes + have, count - have}, there = {(void *)(address + have), count - have};
        ssize_t got = process_vm_readv(task->pid, &here, 1, &there, 1, 0);

        if (got <= 0)
            got = pread(task->memory, (char *)bytes + have, count - have, (off_t)(address + have));
        if (got <= 0)
            return got ? -errno : -ENODATA;
        have += (size_t)got;
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
