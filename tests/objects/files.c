/* Open files, and descriptors that watch others (epoll, inotify). */
#include "objects.h"

#include <dirent.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <termios.h>

static int fd, other, third;
static char text[512];

static const char *make_deleted(void)
{
    fd = open("/tmp/a-deleted", O_RDWR | O_CREAT, 0600);
    NEED(fd >= 0 && write(fd, "deleted", 7) == 7 && !unlink("/tmp/a-deleted"));
    return OK;
}
static const char *check_deleted(void)
{
    NEED(lseek(fd, 0, SEEK_CUR) == 7 && pread(fd, text, 9, 0) == 7 && !memcmp(text, "deleted", 7));
    return OK;
}

static const char *make_tmpfile(void)
{
    fd = open("/tmp", O_RDWR | O_TMPFILE, 0600);
    NEED(fd >= 0 && write(fd, "deleted", 7) == 7);
    return OK;
}

static const char *make_memfd(void)
{
    fd = memfd_create("sealed", MFD_ALLOW_SEALING);
    NEED(fd >= 0 && write(fd, "deleted", 7) == 7 && !fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW));
    return OK;
}
static const char *check_memfd(void)
{
    NEED(fcntl(fd, F_GET_SEALS) == (F_SEAL_WRITE | F_SEAL_GROW));
    return check_deleted();
}

static const char *make_append(void)
{
    fd = open("/tmp/an-appended", O_WRONLY | O_CREAT | O_APPEND, 0600);
    NEED(fd >= 0 && write(fd, "12345", 5) == 5);
    return OK;
}
static const char *check_append(void)
{
    struct stat found;

    NEED(lseek(fd, 0, SEEK_SET) == 0 && write(fd, "678", 3) == 3 && !fstat(fd, &found) && found.st_size == 8);
    return OK;
}

static DIR *directory;
static const char *make_directory(void)
{
    NEED(!mkdir("/tmp/a-directory", 0700) && (directory = opendir("/tmp/a-directory")));
    NEED(close(open("/tmp/a-directory/file", O_CREAT, 0600)) == 0);
    return OK;
}
static const char *check_directory(void)
{
    struct dirent *entry;

    while ((entry = readdir(directory)))
        if (!strcmp(entry->d_name, "file"))
            return OK;
    return "the entry is not seen";
}

static const char *make_signalfd(void)
{
    sigset_t set;

    sigemptyset(&set), sigaddset(&set, SIGUSR1), sigaddset(&set, SIGRTMIN + 3);
    NEED(!sigprocmask(SIG_BLOCK, &set, NULL) && (fd = signalfd(-1, &set, SFD_NONBLOCK)) >= 0);
    NEED(!kill(getpid(), SIGUSR1) && !sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = 42}));
    return OK;
}
static const char *check_signalfd(void)
{
    struct signalfd_siginfo info;

    NEED(read(fd, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR1);
    NEED(read(fd, &info, sizeof info) == sizeof info && info.ssi_int == 42);
    return OK;
}

/* An epoll set with a level-triggered, edge-triggered, disarmed one-shot and nested entry, each with its data. */
static const char *make_epoll(void)
{
    struct epoll_event level = {EPOLLIN, {.u64 = 11}}, once = {EPOLLIN | EPOLLONESHOT, {.u64 = 22}},
                       nested = {EPOLLIN, {.u64 = 33}}, got;

    fd = epoll_create1(0), other = eventfd(0, EFD_NONBLOCK), third = epoll_create1(0);
    NEED(!epoll_ctl(fd, EPOLL_CTL_ADD, other, &level) && !epoll_ctl(third, EPOLL_CTL_ADD, fd, &nested));
    NEED((other = eventfd(1, EFD_NONBLOCK)) >= 0 && !epoll_ctl(fd, EPOLL_CTL_ADD, other, &once));
    NEED(epoll_wait(fd, &got, 1, 0) == 1 && got.data.u64 == 22 && epoll_wait(fd, &got, 1, 0) == 0);
    return OK;
}
static const char *check_epoll(void)
{
    struct epoll_event got;
    uint64_t one = 1;

    NEED(epoll_wait(fd, &got, 1, 0) == 0);
    NEED(write(other - 2, &one, 8) == 8);
    NEED(epoll_wait(third, &got, 1, 1000) == 1 && got.data.u64 == 33);
    NEED(epoll_wait(fd, &got, 1, 1000) == 1 && got.data.u64 == 11);
    return OK;
}

static const char *make_inotify(void)
{
    NEED(!mkdir("/tmp/a-watched", 0700) && (fd = inotify_init1(IN_NONBLOCK)) >= 0);
    NEED((other = inotify_add_watch(fd, "/tmp/a-watched", IN_CREATE)) >= 0);
    return OK;
}
static const char *check_inotify(void)
{
    struct inotify_event *event = (void *)text;

    close(open("/tmp/a-watched/after", O_CREAT, 0600));
    for (int i = 0; i < 50; i++) {
        if (read(fd, text, sizeof text) > 0 && event->wd == other && !strcmp(event->name, "after"))
            return OK;
        sleep_ms(20);
    }
    return "no event";
}
static const char *make_inotify_queued(void)
{
    NEED(!mkdir("/tmp/a-queued", 0700) && (fd = inotify_init1(IN_NONBLOCK)) >= 0);
    NEED((other = inotify_add_watch(fd, "/tmp/a-queued", IN_CREATE)) >= 0);
    close(open("/tmp/a-queued/after", O_CREAT, 0600));
    return OK;
}
static const char *check_inotify_queued(void)
{
    struct inotify_event *event = (void *)text;

    NEED(read(fd, text, sizeof text) > 0 && event->wd == other && !strcmp(event->name, "after"));
    return OK;
}
static const char *make_inotify_shared(void)
{
    NEED((fd = inotify_init1(IN_NONBLOCK)) >= 0);
    NEED((other = inotify_add_watch(fd, "/etc", IN_CREATE)) >= 0);
    return OK;
}
static const char *check_nothing(void) { return OK; }

#define CASE(name, check) {#name, make_##name, check}
const struct object files[] = {
    CASE(deleted, check_deleted), CASE(tmpfile, check_deleted), CASE(memfd, check_memfd), CASE(append, check_append),
    CASE(directory, check_directory), CASE(signalfd, check_signalfd), CASE(epoll, check_epoll),
    CASE(inotify, check_inotify), CASE(inotify_queued, check_inotify_queued), CASE(inotify_shared, check_nothing), {0},
};
