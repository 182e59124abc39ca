/*
 * See sweep.h. Invariant: it looks and kills with the owner's rights, as the owner chooses the environment of
 * processes; this process itself is never among them.
 */
#include "sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wherry/buffer.h"

enum { CHUNK = 64 << 10 };

/* The environment of a process, which is kept in `environment`. Returns negative errno when it cannot be read. */
static int read_environment(const char *pid, struct buffer *environment)
{
    char path[64];
    ssize_t count = 1;
    int fd;

    snprintf(path, sizeof path, "/proc/%.20s/environ", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    buffer_consume(environment, environment->count);
    while (count > 0 && buffer_reserve(environment, CHUNK) == 0) {
        count = read(fd, buffer_tail(environment), CHUNK);
        environment->count += count > 0 ? (size_t)count : 0;
    }
    close(fd);
    return count < 0 ? -EIO : 0;
}

static bool has_mark(const struct buffer *environment, const char *mark)
{
    const char *at = (const char *)buffer_head(environment), *end = at + environment->count;
    size_t length = strlen(mark);

    while (at < end) {
        const char *next = memchr(at, 0, (size_t)(end - at));

        if (!next)
            next = end;
        if ((size_t)(next - at) == length && memcmp(at, mark, length) == 0)
            return true;
        at = next + 1;
    }
    return false;
}

static int kill_marked(DIR *processes, const char *mark)
{
    struct buffer environment = {0};
    struct dirent *entry;
    int killed = 0;

    while ((entry = readdir(processes))) {
        const char *name = entry->d_name;

        if (name[0] >= '1' && name[0] <= '9' && atoi(name) != getpid() && read_environment(name, &environment) == 0 &&
            has_mark(&environment, mark))
            killed += kill(atoi(name), SIGKILL) == 0;
    }
    buffer_free(&environment);
    return killed;
}

int sweep_job(const char *job, const struct owner *owner)
{
    DIR *processes = opendir("/proc");
    uid_t user = geteuid();
    gid_t group = getegid();
    char mark[128];
    int killed;

    if (!processes)
        return -errno;
    snprintf(mark, sizeof mark, "WHERRY_JOB_ID=%.80s", job);
    if (setegid(owner->gid) < 0 || seteuid(owner->uid) < 0)
        killed = -errno;
    else
        killed = kill_marked(processes, mark);
    if (seteuid(user) < 0 || setegid(group) < 0)
        abort(); /* an agent without its rights serves nobody */
    closedir(processes);
    return killed;
}
