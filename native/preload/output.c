/*
 * libwherry-output.so: ranks that write faster than their output is taken wait in write(), as with a pipe (LD_PRELOAD
 * into the launcher's own processes of Open MPI 4: mpirun, and orted on each node).
 *
 *      rank --pty, pipe--> orted --connection--> mpirun --pipe--> holder
 *
 * Both read whatever comes, and queue in memory what they cannot pass on. They wait in poll(), so here what brings output
 * is not told to be readable while the way on has a queue: in the daemon of a node a connection that poll() is to tell
 * when it takes more, in mpirun a full pipe. While the daemon's connection takes more, it is told of one that brings
 * output with each call, as it writes one message for each. All else is heard: daemons always read their connections, so
 * signals, standard input and the end of a job are not held up. What an ended rank has left in its pipes has an end, so
 * that is read (POLLHUP).
 *
 * Once the launcher ends the job, mpirun reads all, as it must hear from its daemons, and ranks write no more.
 *
 * Invariants: nothing is kept between two calls but what a pipe was found to be; no call returns later than its timeout,
 * one may return 0 before it. In any other process the call is the C library's own. Ranks do not get the library: it
 * takes itself out of the environment.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    MOST = 4096, /* descriptors of a call that is looked at */
    PIPES = 1024,
    SIGSET = 8, /* bytes of the kernel's sigset_t */
};

/* Variables of the launcher's library that are set when the job is to end. */
static const char *const ENDINGS[] = {"orte_abnormal_term_ordered", "orte_orteds_term_ordered"};

static const volatile bool *endings[sizeof ENDINGS / sizeof *ENDINGS];
static bool is_launcher, is_daemon;
static _Atomic ino_t pipes_of_ranks[PIPES]; /* by descriptor: the last pipe whose other end was another process's */

typedef bool is_held(int fd);

static int kernel_poll(struct pollfd *set, nfds_t count, struct timespec *left)
{
    return (int)syscall(SYS_ppoll, set, count, left, NULL, SIGSET); /* which says in `left` how much is left */
}

static int option(int fd, int name)
{
    int value;
    socklen_t size = sizeof value;

    return getsockopt(fd, SOL_SOCKET, name, &value, &size) < 0 ? -1 : value;
}

static bool is_of_network(int fd)
{
    int domain = option(fd, SO_DOMAIN);

    return domain == AF_INET || domain == AF_INET6;
}

static bool is_pty(int fd)
{
    int number;

    return ioctl(fd, TIOCGPTN, &number) == 0;
}

static bool is_open_for_writing(int fd, const struct stat *pipe)
{
    struct stat other;
    int flags;

    return fstat(fd, &other) == 0 && other.st_ino == pipe->st_ino && other.st_dev == pipe->st_dev &&
           (flags = fcntl(fd, F_GETFL)) >= 0 && (flags & O_ACCMODE) != O_RDONLY;
}

/* libevent wakes itself by pipes, whose other end is this process's. */
static bool is_our_own(const struct stat *pipe)
{
    DIR *descriptors = opendir("/proc/self/fd");
    struct dirent *entry;
    bool found = !descriptors;

    while (!found && (entry = readdir(descriptors)))
        found = is_open_for_writing(atoi(entry->d_name), pipe);
    if (descriptors)
        closedir(descriptors);
    return found;
}

static bool is_known_pipe(int fd, const struct stat *pipe)
{
    return fd < PIPES && pipes_of_ranks[fd] == pipe->st_ino;
}

/* In the daemon of a node: whether it is a rank's output. */
static bool brings_output(int fd)
{
    struct stat file;

    if (fd <= STDERR_FILENO || is_pty(fd))
        return fd > STDERR_FILENO;
    if (fstat(fd, &file) < 0 || !S_ISFIFO(file.st_mode) || (!is_known_pipe(fd, &file) && is_our_own(&file)))
        return false;
    if (fd < PIPES)
        pipes_of_ranks[fd] = file.st_ino;
    return true;
}

/* The same for one that need not be readable: says no of a pipe that was not looked at. */
static bool is_known_to_bring_output(int fd)
{
    struct stat file;

    return fd > STDERR_FILENO && (is_pty(fd) || (fstat(fd, &file) == 0 && is_known_pipe(fd, &file)));
}

/* In mpirun: whether it is a daemon's connection, or the standard input. */
static bool feeds_mpirun(int fd)
{
    return fd == STDIN_FILENO || (is_of_network(fd) && option(fd, SO_ACCEPTCONN) == 0);
}

/* Has those that are held not be readable, but for `most` of them. The number of descriptors without an event then. */
static int hold_back(struct pollfd *set, nfds_t count, is_held *held, unsigned most)
{
    static _Thread_local nfds_t turn; /* where the last one stood that was let through */
    nfds_t begin = turn;
    int emptied = 0;

    for (nfds_t i = 1; i <= count; i++) {
        struct pollfd *one = set + (begin + i) % count;

        if (!(one->revents & POLLIN) || !held(one->fd))
            continue;
        if (most) {
            most--;
            turn = (begin + i) % count;
            continue;
        }
        one->revents &= (short)~POLLIN;
        emptied += !one->revents;
    }
    return emptied;
}

/* Waits without those that are held, and for `ways`, which the caller is not told of. */
static int poll_others(struct pollfd *set, nfds_t count, is_held *held, const struct pollfd ways[2],
                       struct timespec *left)
{
    struct pollfd copy[MOST + 2];
    int found, told = 0;

    memcpy(copy, set, count * sizeof *set);
    memcpy(copy + count, ways, 2 * sizeof *ways);
    for (nfds_t i = 0; i < count; i++)
        if (copy[i].events & POLLIN && held(copy[i].fd))
            copy[i].events &= (short)~POLLIN;
    found = kernel_poll(copy, count + 2, left);
    for (nfds_t i = 0; i < count && found >= 0; i++) {
        set[i].revents = copy[i].revents;
        told += set[i].revents != 0;
    }
    return found < 0 ? found : told;
}

/* The connection that has a queue, or NULL. */
static const struct pollfd *queued(const struct pollfd *set, nfds_t count)
{
    for (nfds_t i = 0; i < count; i++)
        if (set[i].events & POLLOUT && is_of_network(set[i].fd))
            return set + i;
    return NULL;
}

static int poll_of_daemon(struct pollfd *set, nfds_t count, int timeout, struct timespec *left)
{
    static const struct pollfd none[2] = {{.fd = -1}, {.fd = -1}};
    const struct pollfd *way = queued(set, count);
    struct timespec now = {0};
    int found;

    if (!way)
        return kernel_poll(set, count, left);
    found = kernel_poll(set, count, &now);
    if (found > (way->revents ? 2 : 0)) /* the way itself and one, which may be told whatever it is */
        found -= hold_back(set, count, brings_output, way->revents ? 1 : 0);
    if (found || timeout == 0)
        return found;
    return poll_others(set, count, is_known_to_bring_output, none, left);
}

static bool has_input(const struct pollfd *set, nfds_t count)
{
    for (nfds_t i = 0; i < count; i++)
        if (set[i].revents & POLLIN)
            return true;
    return false;
}

static int poll_of_mpirun(struct pollfd *set, nfds_t count, int timeout, struct timespec *left)
{
    struct pollfd ways[2] = {{.fd = STDOUT_FILENO, .events = POLLOUT}, {.fd = STDERR_FILENO, .events = POLLOUT}};
    struct timespec now = {0};
    int found = kernel_poll(set, count, left);

    if (found <= 0 || !has_input(set, count) || kernel_poll(ways, 2, &now) == 2)
        return found;
    found -= hold_back(set, count, feeds_mpirun, 0);
    if (found || timeout == 0)
        return found;
    for (int i = 0; i < 2; i++)
        if (ways[i].revents)
            ways[i].fd = -1;
    return poll_others(set, count, feeds_mpirun, ways, left);
}

static bool is_ending(void)
{
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (endings[i] && *endings[i])
            return true;
    return false;
}

int poll(struct pollfd *set, nfds_t count, int timeout)
{
    struct timespec time = {.tv_sec = timeout / 1000, .tv_nsec = timeout % 1000 * 1000000L};
    struct timespec *left = timeout < 0 ? NULL : &time;

    if (!is_launcher || count > MOST || is_ending())
        return kernel_poll(set, count, left);
    return is_daemon ? poll_of_daemon(set, count, timeout, left) : poll_of_mpirun(set, count, timeout, left);
}

/* LD_PRELOAD begins with this library, where it is loaded for Wherry. */
static void leave_environment(void)
{
    const char *all = getenv("LD_PRELOAD");
    size_t length;
    Dl_info us;

    if (!all || !dladdr(&is_launcher, &us) || !us.dli_fname)
        return;
    length = strlen(us.dli_fname);
    if (strncmp(all, us.dli_fname, length) != 0)
        return;
    if (all[length] == ' ')
        setenv("LD_PRELOAD", all + length + 1, 1);
    else if (!all[length])
        unsetenv("LD_PRELOAD");
}

__attribute__((constructor)) static void begin(void)
{
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        endings[i] = dlsym(RTLD_DEFAULT, ENDINGS[i]);
        is_launcher = is_launcher || endings[i];
    }
    is_daemon = strcmp(program_invocation_short_name, "orted") == 0;
    if (is_launcher)
        leave_environment();
}
