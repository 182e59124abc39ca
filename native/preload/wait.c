/*
 * libwherry-wait.so: a rank that polls in vain sleeps until its next message while others want its processor
 * (LD_PRELOAD; needs no MPI to build).
 *
 * MPI libraries wait by polling: poll() or epoll_wait() with timeout 0, again and again. Where there are more ranks than
 * processors, the kernel cannot tell a rank that waits from one that computes, and every node is a cgroup of its own,
 * among which sched_yield() does nothing. Ranks of nodes talk through sockets only, so a call that has found nothing for
 * some time can wait in the kernel for all that its thread polls: one set of descriptors, or its epoll instances.
 *
 *      poll poll poll poll | does another task want a processor?   no: poll on, but not beyond FREE
 *      \___ BUSY or more _/                                       yes: sleep until a descriptor is ready
 *
 * Invariants: a poll with timeout 0 returns what it could have returned when it ends; calls with other timeouts are the
 * C library's own. A thread that computes between two polls (more than GAP) never sleeps. What an MPI library does
 * without a descriptor (timers, work of other threads) is late by LONGEST at most. Nothing is allocated, no descriptor
 * is kept, and errno changes only as the call itself changes it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    GAP = 20 * 1000,        /* ns between two polls that a thread which only waits does not exceed */
    BUSY = 30 * 1000,       /* ns of polling before the thread looks whether others want a processor; also between looks */
    FREE = 1000 * 1000,     /* ns of polling after which it sleeps though processors are free: it spends a quota */
    RECOUNT = 1000 * 1000 * 1000, /* ns for which the number of processors is valid: a move may change it */
    FIRST = 1,              /* ms of the first sleep; each next one of the same wait takes twice as long */
    LONGEST = 8,            /* ms */
    EPOLLS = 8,             /* epoll instances of one thread; UCX has one for each network device */
    SET = 512,              /* descriptors in one poll of all that a thread polls */
    SIGSET = 8,             /* bytes of the kernel's sigset_t */
};

/* What a thread polls, and since when in vain. */
struct wait {
    uint64_t begin, looked, last; /* ns: first poll of this wait, last look for other tasks, last poll */
    unsigned sleep;               /* ms of the next sleep */
    bool several;                 /* more is polled than one sleep can wait for */
    const struct pollfd *set;     /* the set of descriptors that poll() was called with */
    unsigned epolls;
    int epoll[EPOLLS];
};

static _Thread_local struct wait waiting __attribute__((tls_model("initial-exec")));

int __poll_chk(struct pollfd *set, nfds_t count, int timeout, size_t size);

static uint64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
}

static int kernel_poll(struct pollfd *set, nfds_t count, unsigned milliseconds)
{
    struct timespec time = {.tv_nsec = (long)milliseconds * 1000000};

    return (int)syscall(SYS_ppoll, set, count, &time, NULL, SIGSET);
}

static int kernel_epoll(int epoll, struct epoll_event *events, int most, unsigned milliseconds)
{
    return (int)syscall(SYS_epoll_pwait, epoll, events, most, (int)milliseconds, NULL, SIGSET);
}

/* Tasks of this machine that run or want to, the caller included: the fourth field of /proc/loadavg, "2/345". */
static long running_tasks(void)
{
    char text[80], *slash;
    int file = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    ssize_t size;

    if (file < 0)
        return 0;
    size = read(file, text, sizeof text - 1);
    close(file);
    text[size > 0 ? size : 0] = '\0';
    slash = strchr(text, '/');
    if (!slash)
        return 0;
    *slash = '\0';
    return strtol(strrchr(text, ' ') ? strrchr(text, ' ') : text, NULL, 10);
}

static bool processors_are_wanted(uint64_t time)
{
    static long processors;
    static uint64_t counted;

    if (!processors || time - counted > RECOUNT) { /* threads that do it at once write the same */
        processors = sysconf(_SC_NPROCESSORS_ONLN);
        counted = time;
    }
    return running_tasks() > processors;
}

/* Whether a poll that found nothing is to sleep. */
static bool should_sleep(struct wait *wait)
{
    uint64_t time = now(), gap = time - wait->last;

    wait->last = time;
    if (gap > GAP) {
        *wait = (struct wait){.begin = time, .looked = time, .last = time, .sleep = FIRST};
        return false;
    }
    if (time - wait->looked < BUSY)
        return false;
    if (time - wait->begin > FREE || processors_are_wanted(time))
        return true;
    wait->looked = wait->last = now();
    return false;
}

static void found(struct wait *wait)
{
    wait->last = 0; /* the next poll is the first of a wait */
}

static void slept(struct wait *wait, int ready)
{
    wait->looked = wait->last = now();
    if (!ready && wait->sleep < LONGEST)
        wait->sleep *= 2;
}

/* Sleeps until something of all that the thread polls is ready; `set` are descriptors beside its epoll instances. */
static void sleep_for_all(struct wait *wait, const struct pollfd *set, nfds_t count)
{
    struct pollfd all[SET];
    int ready;

    if (wait->several || count + wait->epolls > SET) {
        static const struct timespec nap = {.tv_nsec = 50 * 1000};

        syscall(SYS_nanosleep, &nap, NULL);
        slept(wait, 0);
        wait->sleep = FIRST;
        return;
    }
    if (count)
        memcpy(all, set, count * sizeof *set);
    for (unsigned i = 0; i < wait->epolls; i++)
        all[count + i] = (struct pollfd){.fd = wait->epoll[i], .events = POLLIN};
    ready = kernel_poll(all, count + wait->epolls, wait->sleep);
    slept(wait, ready);
}

/* A poll with timeout 0 is never interrupted; one that slept may have been. */
static int result(int ready, int error)
{
    if (ready < 0 && errno == EINTR)
        ready = 0;
    if (ready >= 0)
        errno = error;
    return ready;
}

static int poll_now(struct pollfd *set, nfds_t count)
{
    struct wait *wait = &waiting;
    int error = errno, ready = kernel_poll(set, count, 0);
    bool sleep;

    if (ready || count == 0) { /* nothing would end a sleep for no descriptor */
        found(wait);
        return ready;
    }
    sleep = should_sleep(wait);
    if (wait->set && wait->set != set)
        wait->several = true;
    wait->set = set;
    if (sleep) {
        if (wait->several || wait->epolls) {
            sleep_for_all(wait, set, count);
            ready = kernel_poll(set, count, 0);
        } else {
            ready = kernel_poll(set, count, wait->sleep);
            slept(wait, ready);
        }
        if (ready)
            found(wait);
    }
    return result(ready, error);
}

int poll(struct pollfd *set, nfds_t count, int timeout)
{
    static int (*next)(struct pollfd *, nfds_t, int);

    if (timeout == 0)
        return poll_now(set, count);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "poll");
    return next(set, count, timeout);
}

/* poll() of a program that was built with bounds checks. */
int __poll_chk(struct pollfd *set, nfds_t count, int timeout, size_t size)
{
    if (size / sizeof *set < count)
        abort();
    return poll(set, count, timeout);
}

static void remember(struct wait *wait, int epoll)
{
    for (unsigned i = 0; i < wait->epolls; i++)
        if (wait->epoll[i] == epoll)
            return;
    if (wait->epolls < EPOLLS)
        wait->epoll[wait->epolls++] = epoll;
    else
        wait->several = true;
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout)
{
    static int (*next)(int, struct epoll_event *, int, int);
    struct wait *wait = &waiting;
    int error = errno, ready;
    bool sleep;

    if (timeout != 0) {
        if (!next)
            *(void **)&next = dlsym(RTLD_NEXT, "epoll_wait");
        return next(epoll, events, most, timeout);
    }
    ready = kernel_epoll(epoll, events, most, 0);
    if (ready) {
        found(wait);
        return ready;
    }
    sleep = should_sleep(wait);
    remember(wait, epoll);
    if (sleep && !wait->set) { /* with a set, its own poll sleeps for all */
        if (wait->several || wait->epolls > 1) {
            sleep_for_all(wait, NULL, 0);
            ready = kernel_epoll(epoll, events, most, 0);
        } else {
            ready = kernel_epoll(epoll, events, most, wait->sleep);
            slept(wait, ready);
        }
        if (ready)
            found(wait);
    }
    return result(ready, error);
}
