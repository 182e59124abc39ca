/*
 * libwherry-wait.so: a rank that polls in vain sleeps until its next message while others want its processor
 * (LD_PRELOAD; needs no MPI to build).
 *
 * MPI libraries wait by polling: poll() or epoll_wait() with timeout 0, again and again. Where there are more ranks than
 * processors, the kernel cannot distinguish a waiting rank from a computing one, and every node is a cgroup of its own,
 * among which sched_yield() does nothing. Ranks of nodes talk through sockets only, so a call that has found nothing for
 * some time can wait in the kernel for all that its thread polls: one set of descriptors, or its epoll instances.
 *
 *      poll poll poll poll | oversubscribed?  no: poll on, but not beyond FREE
 *      \______ ROUND _____/                  yes: sleep until a descriptor is ready
 *
 * Oversubscribed means that more tasks run or want to than there are processors, at one in four of the last looks (each
 * takes as long as ten polls, so there is one in LOOK at most). Then a sleep costs a switch to another task, a few
 * microseconds, while polling keeps that task waiting and, what is worse, hides this processor from the kernel, which
 * puts a woken task on an idle one at once and behind a busy one for milliseconds. Otherwise a sleep would make the
 * processor idle, from which a message wakes it some 25 us later on a virtual machine, and polling takes nothing from
 * anybody.
 *
 * A test of MPI (testing.h) is no wait: its program may have other work. A loop of tests with nothing between them is one
 * all the same, as HPL's for its broadcasts: after TESTS of it, while others want the processor, it naps until a message
 * comes, each time for half of its wait so far, from NAP to NAP_MOST. So a loop that waits for something else,
 * a time or another thread, is late by that at most.
 *
 * Invariants: the result of a poll with timeout 0 is one it could have at its end; calls with other timeouts are the
 * C library's own. A thread that computes between two polls (more than GAP) never sleeps. Work that an MPI library does
 * without a descriptor (timers, work of other threads) is late by LONGEST at most. Nothing is allocated, no descriptor
 * or timer is kept that a move would lose, a clock that it sets back begins a new wait, and errno changes only as the
 * call itself changes it.
 */
#include "clock.h"
#include "testing.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    GAP = 20 * 1000,        /* ns between two polls that a thread which only waits does not exceed */
    ROUND = 16,             /* polls before a sleep: Open MPI looks after some of its work at each eighth only */
    TESTS = 4 * 1000,       /* ns of polling by tests before the first nap */
    NAP = 50 * 1000,        /* ns, to which the kernel adds the timer slack of the thread: the least nap */
    NAP_MOST = 1000 * 1000, /* ns */
    FREE = 1000 * 1000,     /* ns of polling after which it sleeps though processors are free: it spends a quota */
    LOOK = 1000 * 1000,     /* ns between two looks for other tasks */
    SURE = 64,              /* the score of looks that all found more tasks than processors */
    CROWDED = SURE / 4,     /* the score that one such look gives, and one in four keeps */
    RECOUNT = 1000 * 1000 * 1000, /* ns for which the number of processors is valid: a move may change it */
    MILLISECOND = 1000 * 1000, /* ns */
    FIRST = MILLISECOND,    /* ns of the first sleep; each next one of the same wait takes twice as long */
    LONGEST = 8 * MILLISECOND, /* ns */
    EPOLLS = 8,             /* epoll instances of one thread; UCX has one for each network device */
    SET = 512,              /* descriptors in one poll of all that a thread polls */
    SIGSET = 8,             /* bytes of the kernel's sigset_t */
};

/* The descriptors that a thread polls, and since when in vain. */
struct wait {
    uint64_t begin, last;         /* ns: first poll of this wait, last poll */
    unsigned polls;               /* since its begin or its last sleep */
    unsigned sleep;               /* ns of the next sleep */
    bool tests;                   /* the polls are those of tests, which are never one wait with others */
    bool napped;                  /* between them, in this wait */
    bool several;                 /* more is polled than one sleep can wait for */
    const struct pollfd *set;     /* the set of descriptors that poll() was called with */
    unsigned epolls;
    int epoll[EPOLLS];
};

static _Thread_local struct wait waiting __attribute__((tls_model("initial-exec")));

int __poll_chk(struct pollfd *set, nfds_t count, int timeout, size_t size);

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

static bool is_crowded(uint64_t time)
{
    static long processors;
    static uint64_t counted, looked; /* threads that do it at once may count a look twice */
    static int score;

    if (time - looked < LOOK)
        return score >= CROWDED;
    looked = time;
    if (!processors || time - counted > RECOUNT) {
        processors = sysconf(_SC_NPROCESSORS_ONLN);
        counted = time;
    }
    score += running_tasks() > processors ? (SURE - score) / 4 : -(score / 4 + (score > 0));
    return score >= CROWDED;
}

/* Counts a poll that found nothing as one of this wait, or as the first of the next one. */
static void in_vain(struct wait *wait)
{
    uint64_t time = now(), gap = time - wait->last;

    if (gap > GAP || wait->tests != testing || (testing && worked))
        *wait = (struct wait){
            .begin = time, .sleep = FIRST, .tests = testing,
        };
    worked = false;
    wait->last = time;
    wait->polls++;
}

static unsigned nap(const struct wait *wait)
{
    uint64_t half = (wait->last - wait->begin) / 2;

    return half < NAP ? NAP : half < NAP_MOST ? (unsigned)half : NAP_MOST;
}

/* ns for which a thread that polled in vain is to sleep; 0: not at all. */
static unsigned time_to_sleep(struct wait *wait)
{
    uint64_t time = wait->last;
    bool crowded;

    if (wait->polls < ROUND || (wait->tests && !wait->napped && time - wait->begin < TESTS))
        return 0;
    crowded = is_crowded(time);
    wait->last = now(); /* a look is no pause */
    if (!crowded && (wait->tests || time - wait->begin < FREE))
        return 0;
    return wait->tests ? nap(wait) : wait->sleep;
}

static void found(struct wait *wait)
{
    wait->last = 0; /* the next poll is the first of a wait */
}

/* After a sleep or nap. */
static void slept(struct wait *wait, int ready)
{
    wait->napped = true;
    if (!ready && !wait->tests && wait->sleep < LONGEST)
        wait->sleep *= 2;
    wait->last = now();
    wait->polls = 0;
}

/* Sleeps until something of all that the thread polls is ready; `set` are descriptors beside its epoll instances. */
static void sleep_for_all(struct wait *wait, const struct pollfd *set, nfds_t count, unsigned time)
{
    struct pollfd all[SET];
    int ready;

    if (wait->several || count + wait->epolls > SET) {
        static const struct timespec least = {.tv_nsec = NAP};

        syscall(SYS_nanosleep, &least, NULL);
        slept(wait, 1); /* perhaps */
        return;
    }
    if (count)
        memcpy(all, set, count * sizeof *set);
    for (unsigned i = 0; i < wait->epolls; i++)
        all[count + i] = (struct pollfd){.fd = wait->epoll[i], .events = POLLIN};
    ready = kernel_poll(all, count + wait->epolls, time);
    slept(wait, ready);
}

/* A poll with timeout 0 is never interrupted; but a sleep of it may have been. */
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

    if (ready || count == 0) { /* without a descriptor a sleep would never end */
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
            slept(wait, ready);
        }
        if (ready)
            found(wait);
    }
    return result(ready, error);
}
