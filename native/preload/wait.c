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
 *      \____ patience ____/                                       yes: sleep until a descriptor is ready
 *
 * Patience is at most what a sleep would cost: who polls as long as a sleep and a wake-up take, and then sleeps, loses at
 * most as much again as the best that it could have done. Whether polling is worth that, the last sleeps say. After one
 * that ended within BUSY patience doubles, up to BUSY, as polling would have had the message sooner. After a longer one
 * it halves, down to QUICK, as polling would have been in vain while others wanted the processor. Where none of them
 * wants it, polling takes nothing from anybody, so there it is always BUSY.
 *
 * A test of MPI (testing.h) is no wait: its program has other work, so a thread inside one never sleeps for a message.
 * As a loop of tests may be a wait all the same, it naps for NAP after TESTS of polling without a pause, while others
 * want the processor: who works between tests loses no more than that part of its time.
 *
 * Invariants: a poll with timeout 0 returns what it could have returned when it ends; calls with other timeouts are the
 * C library's own. A thread that computes between two polls (more than GAP) never sleeps. What an MPI library does
 * without a descriptor (timers, work of other threads) is late by LONGEST at most. Nothing is allocated, no descriptor
 * or timer is kept that a move would lose, a clock that it sets back begins a new wait, and errno changes only as the
 * call itself changes it.
 */
#include "testing.h"

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
    QUICK = 1000,           /* ns: the least patience */
    BUSY = 30 * 1000,       /* ns: the most patience, and the first; also between looks for others that found none */
    ROUND = 8,              /* polls before a sleep: Open MPI looks after some of its work at each eighth only */
    TESTS = 100 * 1000,     /* ns of polling by tests before a nap */
    NAP = 50 * 1000,        /* ns, to which the kernel adds the timer slack of the thread */
    FREE = 1000 * 1000,     /* ns of polling after which it sleeps though processors are free: it spends a quota */
    WANTED = 1000 * 1000,   /* ns for which it is true that others want a processor: a look costs as much as a sleep */
    RECOUNT = 1000 * 1000 * 1000, /* ns for which the number of processors is valid: a move may change it */
    MILLISECOND = 1000 * 1000, /* ns */
    FIRST = MILLISECOND,    /* ns of the first sleep; each next one of the same wait takes twice as long */
    LONGEST = 8 * MILLISECOND, /* ns */
    EPOLLS = 8,             /* epoll instances of one thread; UCX has one for each network device */
    SET = 512,              /* descriptors in one poll of all that a thread polls */
    SIGSET = 8,             /* bytes of the kernel's sigset_t */
};

/* What a thread polls, and since when in vain. */
struct wait {
    uint64_t begin, looked, last; /* ns: first poll of this wait, last look for other tasks, last poll */
    unsigned polls;               /* since its begin or its last sleep */
    unsigned sleep;               /* ns of the next sleep */
    unsigned patience;            /* ns of polling before a sleep: of the thread, from wait to wait */
    bool tests;                   /* the polls are those of tests, which are never one wait with others */
    bool free;                    /* no other task wanted a processor at the last look */
    bool several;                 /* more is polled than one sleep can wait for */
    const struct pollfd *set;     /* the set of descriptors that poll() was called with */
    unsigned epolls;
    int epoll[EPOLLS];
};

static _Thread_local struct wait waiting __attribute__((tls_model("initial-exec"))) = {.patience = BUSY};

int __poll_chk(struct pollfd *set, nfds_t count, int timeout, size_t size);

static uint64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
}

static int kernel_poll(struct pollfd *set, nfds_t count, unsigned nanoseconds)
{
    struct timespec time = {.tv_nsec = nanoseconds};

    return (int)syscall(SYS_ppoll, set, count, &time, NULL, SIGSET);
}

static int kernel_epoll(int epoll, struct epoll_event *events, int most, unsigned nanoseconds)
{
    return (int)syscall(SYS_epoll_pwait, epoll, events, most, (int)(nanoseconds / MILLISECOND), NULL, SIGSET);
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
    static uint64_t counted, wanted; /* threads that do it at once write the same */

    if (time - wanted < WANTED)
        return true;
    if (!processors || time - counted > RECOUNT) {
        processors = sysconf(_SC_NPROCESSORS_ONLN);
        counted = time;
    }
    if (running_tasks() <= processors)
        return false;
    wanted = time;
    return true;
}

/* Counts a poll that found nothing as one of this wait, or as the first of the next one. */
static void in_vain(struct wait *wait)
{
    uint64_t time = now(), gap = time - wait->last;

    if (gap > GAP || wait->tests != testing)
        *wait = (struct wait){
            .begin = time, .looked = time, .sleep = FIRST, .tests = testing, .patience = wait->patience,
        };
    wait->last = time;
    wait->polls++;
}

/* ns of polling before the next sleep, or before the next look for other tasks. */
static unsigned patience(const struct wait *wait)
{
    if (wait->tests)
        return wait->free ? FREE : TESTS; /* a look takes the time of a piece of work */
    return wait->free ? BUSY : wait->patience;
}

/* ns for which a thread that polled in vain is to sleep; 0: not at all. */
static unsigned time_to_sleep(struct wait *wait)
{
    uint64_t time = wait->last;
    bool spent = !wait->tests && time - wait->begin > FREE;

    if (wait->polls < ROUND || time - wait->looked < patience(wait))
        return 0;
    if (!spent)
        wait->free = !processors_are_wanted(time);
    wait->last = now();
    if (spent || !wait->free)
        return wait->tests ? NAP : wait->sleep;
    wait->looked = wait->last;
    return 0;
}

static void found(struct wait *wait)
{
    wait->last = 0; /* the next poll is the first of a wait */
}

/* After a sleep since wait->last that was for `time`. */
static void slept(struct wait *wait, unsigned time, int ready)
{
    uint64_t end = now();

    if (time != NAP) {
        if (end - wait->last < BUSY)
            wait->patience = wait->patience < BUSY / 2 ? wait->patience * 2 : BUSY;
        else
            wait->patience = wait->patience > QUICK * 2 ? wait->patience / 2 : QUICK;
        if (!ready && wait->sleep < LONGEST)
            wait->sleep *= 2;
    }
    wait->looked = wait->last = end;
    wait->polls = 0;
}

/* Sleeps until something of all that the thread polls is ready; `set` are descriptors beside its epoll instances. */
static void sleep_for_all(struct wait *wait, const struct pollfd *set, nfds_t count, unsigned time)
{
    struct pollfd all[SET];
    int ready;

    if (wait->several || count + wait->epolls > SET) {
        static const struct timespec nap = {.tv_nsec = NAP};

        syscall(SYS_nanosleep, &nap, NULL);
        slept(wait, NAP, 0);
        return;
    }
    if (count)
        memcpy(all, set, count * sizeof *set);
    for (unsigned i = 0; i < wait->epolls; i++)
        all[count + i] = (struct pollfd){.fd = wait->epoll[i], .events = POLLIN};
    ready = kernel_poll(all, count + wait->epolls, time);
    slept(wait, time, ready);
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
    unsigned time;

    if (ready || count == 0) { /* nothing would end a sleep for no descriptor */
        found(wait);
        return ready;
    }
    in_vain(wait);
    if (wait->set && wait->set != set)
        wait->several = true;
    wait->set = set;
    time = time_to_sleep(wait);
    if (time) {
        if (wait->several || wait->epolls) {
            sleep_for_all(wait, set, count, time);
            ready = kernel_poll(set, count, 0);
        } else {
            ready = kernel_poll(set, count, time);
            slept(wait, time, ready);
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
    unsigned time;

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
    in_vain(wait);
    remember(wait, epoll);
    time = wait->set ? 0 : time_to_sleep(wait); /* with a set, its own poll sleeps for all */
    if (time) {
        if (wait->several || wait->epolls > 1 || time < MILLISECOND) {
            sleep_for_all(wait, NULL, 0, time);
            ready = kernel_epoll(epoll, events, most, 0);
        } else {
            ready = kernel_epoll(epoll, events, most, time);
            slept(wait, time, ready);
        }
        if (ready)
            found(wait);
    }
    return result(ready, error);
}
