/* See node_group.h. */
#include "node_group.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { AT_ONCE = 1024 };

/* A file of the group that is beside the list. A descriptor, or -1. */
static int open_beside(const char *tasks, const char *name, int flags)
{
    const char *last = strrchr(tasks, '/');
    size_t length = last ? (size_t)(last + 1 - tasks) : 0;
    char path[PATH_MAX];

    if (length + strlen(name) >= sizeof(path))
        return -1;
    memcpy(path, tasks, length);
    strcpy(path + length, name);
    return open(path, flags | O_CLOEXEC);
}

static bool says(const char *tasks, const char *name, const char *word)
{
    int file = open_beside(tasks, name, O_RDONLY);
    char text[256];
    ssize_t got = file < 0 ? -1 : read(file, text, sizeof(text) - 1);

    if (file >= 0)
        close(file);
    text[got > 0 ? got : 0] = '\0';
    return strstr(text, word) != NULL;
}

/* With cgroup v2, the group as a whole, beneath it too (Linux 5.14). */
static bool kill_all(const char *tasks)
{
    int file = open_beside(tasks, "cgroup.kill", O_WRONLY);
    bool killed = file >= 0 && write(file, "1", 1) == 1;

    if (file >= 0)
        close(file);
    return killed;
}

/* The listed processes, at most `room`. Less than 0: the list cannot be read, as the group is gone. */
static int read_listed(const char *tasks, pid_t *found, int room, pid_t only)
{
    int file = open(tasks, O_RDONLY | O_CLOEXEC), count = 0;
    pid_t pid = 0;
    char bytes[4096];
    ssize_t got = 0;

    if (file < 0)
        return -1;
    while (count < room && (got = read(file, bytes, sizeof(bytes))) > 0)
        for (ssize_t i = 0; i < got && count < room; i++) {
            if (bytes[i] >= '0' && bytes[i] <= '9') {
                pid = pid * 10 + (bytes[i] - '0');
                continue;
            }
            if (pid > 0 && (!only || pid == only))
                found[count++] = pid;
            pid = 0;
        }
    close(file);
    return count;
}

/*
 * A process of the group may end, and its number be another's by now. So it is held first, and killed if the number is
 * listed then: that is it, or a new one of the group while the held one has ended. True when it exists.
 */
static bool kill_if_listed(const char *tasks, pid_t pid)
{
    int held = (int)syscall(SYS_pidfd_open, pid, 0);
    bool killed = false;

    if (held < 0)
        return errno != ESRCH; /* no descriptor is free: it is tried again */
    if (read_listed(tasks, &pid, 1, pid) == 1)
        killed = !syscall(SYS_pidfd_send_signal, held, SIGKILL, NULL, 0);
    close(held);
    return killed;
}

int node_group_kill(const char *tasks)
{
    static pid_t listed[AT_ONCE];
    pid_t self = (pid_t)syscall(SYS_getpid);
    int count = read_listed(tasks, listed, AT_ONCE, 0), killed = 0;
    bool all = count > 0 && kill_all(tasks);

    for (int i = 0; i < count; i++)
        if (listed[i] != self && (all || kill_if_listed(tasks, listed[i])))
            killed++;
    return killed;
}

bool node_group_stands(const char *tasks)
{
    pid_t one;

    return read_listed(tasks, &one, 1, 0) == 1 &&
           (says(tasks, "freezer.state", "FROZEN") || says(tasks, "cgroup.events", "frozen 1"));
}
