/*
 * Launchers that wait in epoll_wait(): prterun and prted of Open MPI 5. See output.c.
 *
 * Their main thread reads, and hands the bytes to threads of the PMIx library. In prterun one of them writes to
 * the holder's pipe; its queue is as long as it is behind. So the main thread reads no further than BATCHES ahead of
 * these threads: it waits until all of them wait, and, in prterun, the pipe takes more.
 *
 * A descriptor that is held back stays readable, so the kernel reports it at once again. The main thread pauses then,
 * until a thread has caught up, or the connection takes more, at most TICK_MS, in which it reads nothing else.
 */
#include "output.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    BATCHES = 32, /* calls of the main thread that brought something, each with a message of each descriptor */
    TICK_MS = 5,
    PATIENCE = 1000, /* pauses: a thread that is at work for longer has ended, or waits for the main one */
    NONE = -1,
    DESCRIPTORS = 1024,
};

typedef _Atomic uint64_t descriptors_t[DESCRIPTORS / 64];

static descriptors_t queued;                      /* a daemon waits until they take more */
static descriptors_t sets;                        /* of epoll, by which threads wait, beside the main one */
static _Atomic unsigned batches;                  /* since all threads last waited */
static _Atomic int at_work;                       /* threads that do not wait, beside the main thread */
static unsigned pauses;                           /* of the main thread since its last batch */

static bool is_main_thread(void)
{
    return syscall(SYS_gettid) == getpid();
}

static int kernel_wait(int set, struct epoll_event *events, int most, int timeout)
{
    return (int)syscall(SYS_epoll_pwait, set, events, most, timeout, NULL, 0);
}

static void futex(int operation, unsigned value, const struct timespec *timeout)
{
    syscall(SYS_futex, &batches, operation | FUTEX_PRIVATE_FLAG, value, timeout, NULL, 0);
}

static bool is_ready(int fd, short events)
{
    struct pollfd one = {.fd = fd, .events = events};
    struct timespec now = {0};

    return kernel_poll(&one, 1, &now) == 1;
}

static bool takes_more(int fd)
{
    return is_ready(fd, POLLOUT);
}

static bool has_events(int set)
{
    return is_ready(set, POLLIN);
}

static bool pipes_take_more(void)
{
    return is_daemon || (takes_more(STDOUT_FILENO) && takes_more(STDERR_FILENO));
}

static void mark(descriptors_t marked, int fd, bool is_marked)
{
    if (fd >= DESCRIPTORS)
        return;
    if (is_marked)
        marked[fd / 64] |= UINT64_C(1) << fd % 64;
    else
        marked[fd / 64] &= ~(UINT64_C(1) << fd % 64);
}

/* The first of these that `fits`. */
static int find(descriptors_t marked, bool (*fits)(int))
{
    for (int word = 0; word < DESCRIPTORS / 64; word++)
        for (uint64_t left = marked[word]; left; left &= left - 1) {
            int fd = word * 64 + __builtin_ctzll(left);

            if (fits(fd))
                return fd;
        }
    return NONE;
}

int epoll_ctl(int set, int operation, int fd, struct epoll_event *event)
{
    int result = (int)syscall(SYS_epoll_ctl, set, operation, fd, event);

    if (is_daemon && result == 0)
        mark(queued, fd, operation != EPOLL_CTL_DEL && event->events & EPOLLOUT);
    return result;
}

/* A thread that gets the bytes that the main one has read. */
static int wait_beside(int set, struct epoll_event *events, int most, int timeout)
{
    static _Thread_local bool works;
    int found;

    mark(sets, set, true);
    found = kernel_wait(set, events, most, 0);
    if (found == 0 && timeout != 0) {
        if (works && atomic_fetch_sub(&at_work, 1) == 1 && pipes_take_more()) {
            batches = 0;
            futex(FUTEX_WAKE, INT_MAX, NULL);
        }
        works = false;
        found = kernel_wait(set, events, most, timeout);
    }
    if (found > 0 && !works) {
        works = true;
        at_work++;
    }
    return found;
}

static bool are_others_at_work(void)
{
    return pauses < PATIENCE && (at_work || find(sets, has_events) != NONE);
}

/* Whether the main thread is to wait for the others. */
static bool is_ahead(void)
{
    if (batches < BATCHES)
        return false;
    if (are_others_at_work() || !pipes_take_more())
        return true;
    batches = 0;
    return false;
}

static bool is_held(const struct epoll_event *event)
{
    return event->events == EPOLLIN && (is_daemon ? brings_output : feeds_launcher)(event->data.fd);
}

/* Leaves out the events that bring output, but for one if `one_passes`. How many events are left. */
static int hold_back(struct epoll_event *events, int count, bool one_passes)
{
    static unsigned turn; /* so that each descriptor has its turn */
    int begin = (int)(turn++ % (unsigned)count), passes = NONE, left = 0;

    for (int i = 0; i < count && one_passes && passes == NONE; i++)
        if (is_held(events + (begin + i) % count))
            passes = (begin + i) % count;
    for (int i = 0; i < count; i++)
        if (i == passes || !is_held(events + i))
            events[left++] = events[i];
    return left;
}

/* Until the other threads have caught up, or else until `way` takes more. */
static void pause_reading(bool is_far_ahead, int way)
{
    struct timespec tick = {.tv_nsec = TICK_MS * 1000000L};
    struct pollfd connection = {.fd = way, .events = POLLOUT};
    unsigned seen = batches;

    pauses++;
    if (!is_far_ahead)
        kernel_poll(&connection, 1, &tick);
    else if (seen)
        futex(FUTEX_WAIT, seen, &tick);
}

/* The main thread. */
static int wait_for_input(int set, struct epoll_event *events, int most, int timeout)
{
    int found = kernel_wait(set, events, most, timeout), left, way;
    bool is_far_ahead;

    if (found <= 0 || is_ending())
        return found;
    way = find(queued, takes_output); /* by which output is passed on, if it has a queue */
    is_far_ahead = is_ahead();
    left = found;
    if (is_far_ahead || way != NONE)
        left = hold_back(events, found, !is_far_ahead && takes_more(way));
    if (left) {
        batches++;
        pauses = 0;
    } else if (timeout != 0) {
        pause_reading(is_far_ahead, way);
    }
    return left;
}

int epoll_wait(int set, struct epoll_event *events, int most, int timeout)
{
    if (!is_launcher)
        return kernel_wait(set, events, most, timeout);
    return is_main_thread() ? wait_for_input(set, events, most, timeout) : wait_beside(set, events, most, timeout);
}
