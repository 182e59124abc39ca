/*
 * libwherry-memory.so: programs get their node's memory size, not their host's (LD_PRELOAD; needs no MPI to build).
 *
 * sysinfo(2) ignores cgroups, and the C library asks it for physical pages. Here total memory is at most the node's
 * limit, and free memory at most the rest of it. The node's own cgroup is the root of its /sys/fs/cgroup
 * (shown_cgroups.py). Files that the kernel drops when others need their place count as free.
 *
 * Invariants: without a limit everything is the host's; a call that succeeds does not change errno.
 */
#include "lookup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

enum { TEXT = 16384 };

/* Of a version of cgroups. */
struct names {
    const char *limit, *used, *stat, *dropped;
};

static const struct names VERSIONS[] = {
    {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
     "/sys/fs/cgroup/memory/memory.stat", "\ntotal_inactive_file "},
    {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "\ninactive_file "},
};

/* Reads a small file with a line break before it; false if it cannot be. */
static bool read_text(const char *path, char text[TEXT])
{
    size_t size = 1;
    ssize_t got;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return false;
    text[0] = '\n';
    while (size < TEXT - 1 && (got = read(fd, text + size, TEXT - 1 - size)) > 0)
        size += (size_t)got;
    text[size] = 0;
    close(fd);
    return size > 1;
}

/* The number behind `name` in the file; false if there is none, as in "max". */
static bool read_number(const char *path, const char *name, unsigned long long *number)
{
    char text[TEXT], *end;
    const char *at;

    if (!read_text(path, text) || !(at = strstr(text, name)))
        return false;
    at += strlen(name);
    *number = strtoull(at, &end, 10);
    return end != at;
}

static unsigned long long least(unsigned long long a, unsigned long long b) { return a < b ? a : b; }

static int node_memory(struct sysinfo *info)
{
    unsigned long long limit, used, dropped;
    int before = errno;

    if (syscall(SYS_sysinfo, info) < 0)
        return -1;
    for (size_t i = 0; i < sizeof(VERSIONS) / sizeof(*VERSIONS); i++) {
        const struct names *names = VERSIONS + i;

        if (!read_number(names->limit, "\n", &limit) || limit / info->mem_unit >= info->totalram)
            continue;
        if (!read_number(names->used, "\n", &used))
            used = 0;
        if (read_number(names->stat, names->dropped, &dropped))
            used -= least(used, dropped);
        info->totalram = (unsigned long)(limit / info->mem_unit);
        info->freeram = (unsigned long)least(info->freeram, (limit - least(limit, used)) / info->mem_unit);
        info->bufferram = (unsigned long)least(info->bufferram, info->totalram);
        info->sharedram = (unsigned long)least(info->sharedram, info->totalram);
        break;
    }
    errno = before;
    return 0;
}

static long pages(bool all)
{
    struct sysinfo info;

    if (node_memory(&info) < 0)
        return -1;
    return (long)((all ? info.totalram : info.freeram) * (unsigned long long)info.mem_unit / (unsigned)getpagesize());
}

int sysinfo(struct sysinfo *info) { return node_memory(info); }

long get_phys_pages(void) { return pages(true); }

long get_avphys_pages(void) { return pages(false); }

long sysconf(int name)
{
    static long (*_Atomic found)(int);
    long (*theirs)(int) = found;

    if (name == _SC_PHYS_PAGES || name == _SC_AVPHYS_PAGES)
        return pages(name == _SC_PHYS_PAGES);
    if (!theirs) {
        *(void **)&theirs = function_behind("sysconf", (void *)(size_t)sysconf, __builtin_return_address(0));
        found = theirs;
    }
    if (theirs)
        return theirs(name);
    errno = EINVAL;
    return -1;
}
