/* See inject_userfaultfd.h. The calls are userfaultfd(…), pidfd_getfd by us, and close(…). */
#include "inject_userfaultfd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/userfaultfd.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "inject.h"
#include "wp_async.h"

enum { COPIES_MAX = 8 };

struct making {
    int pid;
    int copies[COPIES_MAX]; /* to be closed as well */
    int count;
};

static int fetch(int pid, int descriptor)
{
    int process = (int)syscall(SYS_pidfd_open, pid, 0), here, error;

    if (process < 0)
        return -errno;
    here = (int)syscall(SYS_pidfd_getfd, process, descriptor, 0);
    error = here < 0 ? -errno : userfaultfd_set_up(here);
    close(process);
    if (error && here >= 0)
        close(here);
    return error ? error : here;
}

static int close_there(const struct stopped *thread, int descriptor)
{
    const uint64_t arguments[6] = {(uint64_t)descriptor};
    long closed = 0;
    int error = inject_call(thread, SYS_close, arguments, &closed);

    return error ? error : (int)closed;
}

static int make_and_fetch(void *context, const struct stopped *thread, char *why, size_t size)
{
    const uint64_t arguments[6] = {O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY};
    const struct making *making = context;
    long there;
    int error, here;

    if ((error = inject_call(thread, SYS_userfaultfd, arguments, &there))) {
        snprintf(why, size, "its system call was lost: %s", strerror(-error));
        return error;
    }
    if (there < 0) {
        snprintf(why, size, "userfaultfd(2) fails inside it: %s", strerror((int)-there));
        return (int)there;
    }
    here = fetch(making->pid, (int)there);
    for (int i = 0; i < making->count; i++)
        close_there(thread, making->copies[i]);
    error = close_there(thread, (int)there);
    if (here < 0) {
        snprintf(why, size, "its userfaultfd cannot be used here: %s", strerror(-here));
        return here;
    }
    if (error) {
        close(here);
        snprintf(why, size, "its userfaultfd was not closed inside it");
        return error;
    }
    return here;
}

/* Calls for each userfaultfd of a process; until one answers true. */
static bool each_userfaultfd(int pid, bool (*call)(struct making *making, int descriptor), struct making *making)
{
    char path[64], target[64];
    struct dirent *entry;
    bool answer = false;
    DIR *list;

    snprintf(path, sizeof(path), "/proc/%d/fd", pid);
    if (!(list = opendir(path)))
        return false;
    while (!answer && (entry = readdir(list))) {
        ssize_t length = readlinkat(dirfd(list), entry->d_name, target, sizeof(target) - 1);

        target[length > 0 ? length : 0] = '\0';
        if (!strcmp(target, "anon_inode:[userfaultfd]"))
            answer = call(making, atoi(entry->d_name));
    }
    closedir(list);
    return answer;
}

static bool is_same(struct making *making, int ours)
{
    return !syscall(SYS_kcmp, getpid(), making->pid, KCMP_FILE, ours, making->copies[making->count]);
}

static bool note_copy(struct making *making, int descriptor)
{
    making->copies[making->count] = descriptor;
    if (each_userfaultfd(getpid(), is_same, making))
        making->count++;
    return making->count == COPIES_MAX;
}

int inject_userfaultfd(int pid, char *why, size_t size)
{
    struct making making = {.pid = pid};

    /* another thread of its parent may have called fork while the descriptor of that one was there */
    each_userfaultfd(pid, note_copy, &making);
    return inject(pid, make_and_fetch, &making, why, size);
}

int userfaultfd_set_up(int userfaultfd)
{
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_WP_ASYNC};

    return ioctl(userfaultfd, UFFDIO_API, &api) ? -errno : 0;
}
