/* See soft_dirty.h. */
#include "soft_dirty.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ENTERED, LEFT, KINDS };
enum { ATTEMPTS = 100, LOOKS = 3, LOOK_NS = 1000000 };

static const char *const names[KINDS] = {"sys_enter_mremap", "sys_exit_mremap"};
static int *counters[KINDS]; /* descriptors, one for each processor */
static int processors;

int soft_dirty_clear(int pid)
{
    char path[64];
    int file, error = 0;

    snprintf(path, sizeof(path), "/proc/%d/clear_refs", pid);
    if ((file = open(path, O_WRONLY | O_CLOEXEC)) < 0)
        return -errno;
    if (write(file, "4", 1) != 1)
        error = errno ? -errno : -EIO;
    close(file);
    return error;
}

/* The kernel's directory of tracepoints, which need not be mounted anywhere. */
static int open_tracefs(void)
{
    int context = (int)syscall(SYS_fsopen, "tracefs", 1 /* FSOPEN_CLOEXEC */), directory = -1;

    if (context < 0)
        return -errno;
    if (!syscall(SYS_fsconfig, context, 6 /* FSCONFIG_CMD_CREATE */, NULL, NULL, 0))
        directory = (int)syscall(SYS_fsmount, context, 1 /* FSMOUNT_CLOEXEC */, 0);
    if (directory < 0)
        directory = -errno;
    close(context);
    return directory;
}

/* The number of a tracepoint, or negative errno. */
static int64_t tracepoint(int tracefs, const char *name)
{
    char path[128], text[32];
    ssize_t got;
    int file;

    snprintf(path, sizeof(path), "events/syscalls/%s/id", name);
    if ((file = openat(tracefs, path, O_RDONLY | O_CLOEXEC)) < 0)
        return -errno;
    got = read(file, text, sizeof(text) - 1);
    close(file);
    if (got <= 0)
        return -EIO;
    text[got] = '\0';
    return strtoll(text, NULL, 10);
}

/*
 * The kernel counts on each processor by itself. A processor that is switched on later is not counted: then none of it
 * counts.
 */
static int open_counters(int kind, uint64_t id)
{
    struct perf_event_attr attributes = {.type = PERF_TYPE_TRACEPOINT, .size = sizeof(attributes), .config = id};

    if (!(counters[kind] = calloc((size_t)processors, sizeof(int))))
        return -ENOMEM;
    for (int i = 0; i < processors; i++)
        if ((counters[kind][i] = (int)syscall(SYS_perf_event_open, &attributes, -1, i, -1, PERF_FLAG_FD_CLOEXEC)) < 0)
            return -errno;
    return 0;
}

static int64_t sum(int kind)
{
    int64_t total = 0;

    for (int i = 0; i < processors; i++) {
        uint64_t count;

        if (read(counters[kind][i], &count, sizeof(count)) != sizeof(count))
            return -1;
        total += (int64_t)count;
    }
    return total;
}

/* A call that is counted as begun by the second look was ended by the first. */
int64_t soft_dirty_moves(void)
{
    int64_t left, entered;

    if (!counters[LEFT] || sysconf(_SC_NPROCESSORS_ONLN) != processors || (left = sum(LEFT)) < 0)
        return -1;
    entered = sum(ENTERED);
    return entered == left ? entered : -1;
}

static int reset(void)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < processors; i++)
            if (ioctl(counters[kind][i], PERF_EVENT_IOC_RESET, 0))
                return -errno;
    return 0;
}

/*
 * A call that begins or ends while the counters begin, one after the other, may be in one of them only, and they would
 * differ for ever: so until they have agreed for longer than a call takes.
 */
static int begin_together(void)
{
    struct timespec nap = {.tv_nsec = LOOK_NS};

    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        int error = reset(), agreed = 0;

        if (error)
            return error;
        while (agreed < LOOKS && soft_dirty_moves() >= 0) {
            agreed++;
            nanosleep(&nap, NULL);
        }
        if (agreed == LOOKS)
            return 0;
    }
    return -EAGAIN;
}

int soft_dirty_open(char *why, size_t size)
{
    int tracefs = open_tracefs(), error = 0;

    if (tracefs < 0) {
        snprintf(why, size, "calls of mremap cannot be counted: tracefs: %s", strerror(-tracefs));
        return tracefs;
    }
    processors = (int)sysconf(_SC_NPROCESSORS_ONLN);
    for (int kind = 0; kind < KINDS && !error; kind++) {
        int64_t id = tracepoint(tracefs, names[kind]);

        error = id < 0 ? (int)id : open_counters(kind, (uint64_t)id);
        if (error)
            snprintf(why, size, "calls of mremap cannot be counted: %s: %s", names[kind], strerror(-error));
    }
    close(tracefs);
    if (!error && (error = begin_together()))
        snprintf(why, size, "calls of mremap cannot be counted: some are always under way");
    return error;
}
