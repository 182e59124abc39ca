/* See lazy.h. */
#include "lazy.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    RESTORE_FINISHED = 0x52535446,
    MESSAGES = 16,
    PAUSE_LEAST_NS = 50000,
    PAUSE_MOST_NS = 2000000,
};

static int watch(struct lazy *lazy, int fd, void *pointer)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = pointer};

    return epoll_ctl(lazy->epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

/* A path may be longer than an address: the directory becomes the current one for as long as that takes. */
static int bind_at(int fd, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char *copy = strdup(path), *base = copy ? strrchr(copy, '/') : NULL;
    int here = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC), error = 0;
    mode_t mask = umask(0177);

    if (!copy || here < 0)
        error = copy ? -errno : -ENOMEM;
    if (base)
        *base++ = '\0';
    if (!error && base && chdir(*copy ? copy : "/") < 0)
        error = -errno;
    if (!error && strlen(base ? base : copy) >= sizeof(address.sun_path))
        error = -ENAMETOOLONG;
    if (!error) {
        strcpy(address.sun_path, base ? base : copy);
        unlink(address.sun_path);
        if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
            error = -errno;
        if (fchdir(here) < 0)
            error = -errno;
    }
    umask(mask);
    if (here >= 0)
        close(here);
    free(copy);
    return error;
}

int lazy_open(struct lazy *lazy, const char *path)
{
    int error;

    lazy->connection = -1;
    lazy->pause_ns = PAUSE_LEAST_NS;
    lazy->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (lazy->listener < 0)
        return -errno;
    error = bind_at(lazy->listener, path);
    if (error)
        return error;
    lazy->path = path;
    if (listen(lazy->listener, 1) < 0)
        return -errno;
    return watch(lazy, lazy->listener, &lazy->listener);
}

void lazy_unlink(struct lazy *lazy)
{
    if (lazy->path)
        unlink(lazy->path);
    lazy->path = NULL;
}

int lazy_accept(struct lazy *lazy)
{
    lazy->connection = accept4(lazy->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (lazy->connection < 0)
        return errno == EAGAIN || errno == ECONNABORTED ? 0 : -errno;
    close(lazy->listener);
    lazy->listener = -1;
    lazy_unlink(lazy);
    return watch(lazy, lazy->connection, &lazy->connection);
}

static int give_pages(struct lazy *lazy, struct process *process)
{
    struct chunk **chunks;
    size_t count;
    int error = cache_take(lazy->cache, process->pid, &chunks, &count);

    for (size_t i = 0; !error && i < count; i++) {
        uint64_t present[CHUNK_WORDS];
        int recent = chunk_present(chunks[i], lazy->recent, present);

        error = address_map_add(&process->map, chunks[i], present, recent);
    }
    free(chunks);
    return error;
}

static void open_background(struct lazy *lazy)
{
    if (!lazy->restored || !lazy->complete || !lazy->thawed)
        return;
    cache_drop(lazy->cache); /* of processes that are no more */
    lazy->reap = true;
    fill_open(lazy->fill);
}

static int begin(struct lazy *lazy, struct process *process)
{
    int error = give_pages(lazy, process);

    fill_add(lazy->fill, process);
    return error < 0 ? error : watch(lazy, process->userfault, process);
}

static int new_descriptor(struct lazy *lazy, int fd)
{
    struct process *process = process_new(lazy->expected, fd);

    if (!process)
        return -ENOMEM;
    lazy->expected = 0;
    lazy->count++;
    if (lazy->complete)
        return begin(lazy, process);
    process->next = lazy->waiting;
    lazy->waiting = process;
    return 0;
}

int lazy_complete(struct lazy *lazy, uint16_t passes)
{
    struct process *process;
    int error = 0;

    lazy->complete = true;
    lazy->recent = passes > 1 ? (uint16_t)(passes - 1) : 1;
    while (!error && (process = lazy->waiting)) {
        lazy->waiting = process->next;
        error = begin(lazy, process);
    }
    if (!error)
        open_background(lazy);
    return error;
}

void lazy_thawed(struct lazy *lazy)
{
    lazy->thawed = true;
    open_background(lazy);
}

static int take_number(struct lazy *lazy, int32_t number)
{
    if (number == RESTORE_FINISHED) {
        lazy->restored = true;
        open_background(lazy);
    } else if (number > 0) {
        lazy->expected = (uint32_t)number;
        guard_arm(lazy->guard);
    }
    return number ? 0 : -EPROTO;
}

static int descriptor_in(struct msghdr *message)
{
    struct cmsghdr *part = CMSG_FIRSTHDR(message);
    int fd;

    if (!part || part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS ||
        part->cmsg_len != CMSG_LEN(sizeof(fd)))
        return -EPROTO;
    memcpy(&fd, CMSG_DATA(part), sizeof(fd));
    return fd;
}

int lazy_read(struct lazy *lazy)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    int32_t number = 0;
    struct iovec piece = {&number, lazy->expected ? 1 : sizeof(number)};
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    ssize_t got = recvmsg(lazy->connection, &message, MSG_CMSG_CLOEXEC);
    int fd;

    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    if (got == 0) {
        close(lazy->connection);
        lazy->connection = -1;
        return lazy->restored ? 0 : -ECONNRESET;
    }
    if ((size_t)got != piece.iov_len)
        return -EPROTO;
    if (!lazy->expected)
        return take_number(lazy, number);
    fd = descriptor_in(&message);
    return fd < 0 ? fd : new_descriptor(lazy, fd);
}

static int take_fault(struct process *process, uint64_t address)
{
    uint64_t *more;

    for (size_t i = 0; i < process->fault_count; i++)
        if (process->faults[i] == address)
            return 0;
    if (process->fault_count == process->fault_capacity) {
        more = realloc(process->faults, (process->fault_capacity + 16) * sizeof(*more));
        if (!more)
            return -ENOMEM;
        process->faults = more;
        process->fault_capacity += 16;
    }
    process->faults[process->fault_count++] = address;
    return 0;
}

static void set_busy(struct lazy *lazy, struct process *process, bool busy)
{
    if (process->busy == busy)
        return;
    process->busy = busy;
    lazy->busy += busy ? 1 : -1U;
    lazy->pause_ns = PAUSE_LEAST_NS;
}

static int take_fork(struct lazy *lazy, struct process *parent, int fd)
{
    struct process *child = process_new(parent->pid, fd);
    int error;

    if (!child)
        return -ENOMEM;
    error = address_map_fork(&child->map, &parent->map);
    if (error < 0) {
        child->userfault = -1; /* it stays open: else the child would read zeros until the guard has killed it */
        process_put(child);
        return error;
    }
    if (!child->map.left && !child->map.here.count) {
        process_put(child);
        return 0;
    }
    fill_add(lazy->fill, child);
    set_busy(lazy, child, child->map.events_pending);
    lazy->reap |= !child->map.left;
    return watch(lazy, fd, child);
}

static int take_message(struct lazy *lazy, struct process *process, const struct uffd_msg *message)
{
    struct address_map *map = &process->map;

    switch (message->event) {
    case UFFD_EVENT_PAGEFAULT:
        return take_fault(process, message->arg.pagefault.address & ~(uint64_t)(STREAM_PAGE - 1));
    case UFFD_EVENT_FORK:
        return take_fork(lazy, process, (int)message->arg.fork.ufd);
    case UFFD_EVENT_REMAP:
        return address_map_remap(map, message->arg.remap.from, message->arg.remap.to, message->arg.remap.len);
    case UFFD_EVENT_REMOVE:
        address_map_remove(map, message->arg.remove.start, message->arg.remove.end);
        return 0;
    case UFFD_EVENT_UNMAP:
        return address_map_unmap(map, message->arg.remove.start, message->arg.remove.end);
    default:
        return -EPROTO;
    }
}

/* All that is there: a copy is refused as long as an event is not read. -EAGAIN: to be tried again. */
static int read_messages(struct lazy *lazy, struct process *process)
{
    struct uffd_msg messages[MESSAGES];
    ssize_t got;

    do {
        got = read(process->userfault, messages, sizeof(messages));
        if (got < 0 && errno == EINTR)
            got = sizeof(messages);
        else
            for (ssize_t i = 0; i < got / (ssize_t)sizeof(*messages); i++) {
                int error = take_message(lazy, process, &messages[i]);

                if (error < 0)
                    return error;
            }
    } while (got == sizeof(messages));
    if (got >= 0 || errno == EAGAIN)
        return 0;
    return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? -EAGAIN : -errno; /* a fork waits for a descriptor */
}

/* Faults that wait for the source are looked at again after each event too: the page may have moved away. */
static int answer_faults(struct lazy *lazy, struct process *process)
{
    size_t kept = 0;
    int error = 0;

    for (size_t i = 0; i < process->fault_count; i++) {
        int result = error ? error : fill_fault(lazy->fill, process, process->faults[i]);

        if (result < 0)
            process->faults[kept++] = process->faults[i];
        if (result < 0 && result != -EINPROGRESS)
            error = result;
    }
    process->fault_count = kept;
    return error ? error : fill_resolve_events(process);
}

int lazy_serve(struct lazy *lazy, struct process *process)
{
    int error;

    pthread_rwlock_wrlock(&process->lock);
    error = process->gone ? -ESRCH : read_messages(lazy, process);
    if (!error)
        error = answer_faults(lazy, process);
    if (error == -ESRCH)
        process->gone = true;
    set_busy(lazy, process, error == -EAGAIN);
    lazy->reap |= process->gone || !process->map.left;
    pthread_rwlock_unlock(&process->lock);
    return error == -EAGAIN || error == -ESRCH ? 0 : error;
}

int lazy_answer(struct lazy *lazy)
{
    int error = 0;

    for (struct process *process = lazy->fill->processes; !error && process; process = process->next)
        if (process->fault_count)
            error = lazy_serve(lazy, process);
    return error;
}

int64_t lazy_timeout(const struct lazy *lazy)
{
    return lazy->busy ? lazy->pause_ns : -1;
}

int lazy_due(struct lazy *lazy, bool in_vain)
{
    int error = 0;

    if (!lazy->busy)
        return 0;
    if (in_vain && lazy->pause_ns < PAUSE_MOST_NS)
        lazy->pause_ns *= 2;
    for (struct process *process = lazy->fill->processes; !error && process; process = process->next)
        if (process->busy)
            error = lazy_serve(lazy, process);
    return error;
}

static void close_descriptor(struct lazy *lazy, struct process *process)
{
    pthread_rwlock_wrlock(&process->lock);
    set_busy(lazy, process, false);
    process->gone = true;
    epoll_ctl(lazy->epoll, EPOLL_CTL_DEL, process->userfault, NULL); /* should it be open elsewhere too */
    close(process->userfault);
    process->userfault = -1;
    pthread_rwlock_unlock(&process->lock);
}

bool lazy_reap(struct lazy *lazy)
{
    struct process *next;

    lazy->reap = false;
    for (struct process *process = lazy->fill->processes; process; process = next) {
        next = process->next;
        if (!process->gone && (!lazy->restored || process->map.left))
            continue;
        close_descriptor(lazy, process);
        fill_remove(lazy->fill, process);
    }
    return lazy->restored && lazy->complete && !lazy->fill->processes;
}
