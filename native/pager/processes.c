/* See processes.h. */
#include "processes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool read_file(const char *format, int pid, char *text, size_t size)
{
    char path[64];
    FILE *file;
    size_t got;

    snprintf(path, sizeof(path), format, pid);
    if (!(file = fopen(path, "re")))
        return false;
    got = fread(text, 1, size - 1, file);
    fclose(file);
    text[got] = '\0';
    return got;
}

/* False: it has ended, or is a zombie. */
static bool read_stat(int pid, int *parent, uint64_t *start_time)
{
    char text[1024], state;
    const char *rest;

    if (!read_file("/proc/%d/stat", pid, text, sizeof(text)) || !(rest = strrchr(text, ')')))
        return false;
    return sscanf(rest, ") %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64, &state,
                  parent, start_time) == 3 &&
           state != 'Z' && state != 'X';
}

/* The last number of NSpid. 0: it has ended. */
static uint32_t ns_pid_of(int pid)
{
    char text[4096], *line, *end;

    if (!read_file("/proc/%d/status", pid, text, sizeof(text)) || !(line = strstr(text, "\nNSpid:")))
        return 0;
    if ((end = strchr(line + 1, '\n')))
        *end = '\0';
    return (uint32_t)strtoul(strrchr(line, '\t') + 1, NULL, 10);
}

static struct process *find_same(const struct processes *processes, int pid, uint64_t start_time)
{
    for (size_t i = 0; i < processes->count; i++)
        if (processes->list[i].pid == pid && processes->list[i].start_time == start_time)
            return &processes->list[i];
    return NULL;
}

static struct process *found_or_made(struct processes *processes, uint32_t ns_pid)
{
    for (size_t i = 0; i < processes->count; i++)
        if (processes->list[i].ns_pid == ns_pid)
            return &processes->list[i];
    if (processes->count == processes->room) {
        size_t room = processes->room ? 2 * processes->room : 16;
        struct process *more = realloc(processes->list, room * sizeof(*more));

        if (!more)
            return NULL;
        processes->list = more;
        processes->room = room;
    }
    processes->list[processes->count] =
        (struct process){.ns_pid = ns_pid, .userfaultfd = -1, .pagemap = -1, .memory = -1};
    return &processes->list[processes->count++];
}

static int take_in(struct processes *processes, int pid)
{
    struct process *process;
    uint64_t start_time;
    uint32_t ns_pid;
    int parent;

    if (!read_stat(pid, &parent, &start_time))
        return 0;
    if ((process = find_same(processes, pid, start_time))) {
        process->listed = true;
        process->parent = parent;
        return 0;
    }
    if (!(ns_pid = ns_pid_of(pid)))
        return 0;
    if (!(process = found_or_made(processes, ns_pid)))
        return -ENOMEM;
    if (process->listed)
        return -EEXIST;
    if (process->userfaultfd >= 0)
        close(process->userfaultfd);
    process->userfaultfd = -1;
    process->registered = false;
    process->pid = pid;
    process->parent = parent;
    process->start_time = start_time;
    process->listed = true;
    return 0;
}

int processes_read(struct processes *processes, const char *path)
{
    FILE *list = fopen(path, "re");
    int pid, error = 0;

    if (!list)
        return -errno;
    for (size_t i = 0; i < processes->count; i++)
        processes->list[i].listed = false;
    while (!error && fscanf(list, "%d", &pid) == 1)
        error = take_in(processes, pid);
    if (!error && ferror(list))
        error = -EIO;
    fclose(list);
    return error;
}

void processes_drop_ended(struct processes *processes)
{
    size_t kept = 0;

    for (size_t i = 0; i < processes->count; i++) {
        if (processes->list[i].listed)
            processes->list[kept++] = processes->list[i];
        else
            tracker_close(&processes->list[i]);
    }
    processes->count = kept;
}

void processes_free(struct processes *processes)
{
    for (size_t i = 0; i < processes->count; i++)
        tracker_close(&processes->list[i]);
    objects_free(&processes->objects);
    free(processes->list);
    *processes = (struct processes){0};
}
