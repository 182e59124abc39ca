/* See wherry/process.h. No state; safe between fork and exec. */
#include "wherry/process.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int process_close_inherited(void)
{
    int fd;

    /* The system call by number: Debian 12's libc has the wrapper, older static ones do not. */
    if (syscall(SYS_close_range, 3u, ~0u, 0u) < 0)
        for (fd = 3; fd < 65536; fd++)
            close(fd);
    do {
        fd = open("/dev/null", O_RDWR);
        if (fd < 0)
            return -errno;
    } while (fd <= 2);
    close(fd);
    return 0;
}

int process_detach_streams(void)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (fd < 0 || dup2(fd, 0) < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
        return -errno;
    if (fd > 2)
        close(fd);
    return 0;
}

void process_reset_signals(void)
{
    sigset_t none;

    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

int process_become(uid_t uid, gid_t gid, const gid_t *groups, size_t group_count)
{
    if (geteuid() == 0 && setgroups(group_count, groups) < 0)
        return -errno;
    if (setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0)
        return -errno;
    return 0;
}

void process_describe_status(int status, char *text, size_t room)
{
    if (WIFSIGNALED(status))
        snprintf(text, room, "signal %d", WTERMSIG(status));
    else
        snprintf(text, room, "exit %d", WEXITSTATUS(status));
}

int process_write_all(int fd, const void *bytes, size_t count)
{
    const char *at = bytes;

    while (count) {
        ssize_t written = write(fd, at, count);

        if (written < 0 && errno != EINTR)
            return -errno;
        if (written > 0) {
            at += written;
            count -= (size_t)written;
        }
    }
    return 0;
}

int64_t process_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
