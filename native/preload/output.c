/*
 * libwherry-output.so: ranks that write faster than their output is taken wait in write(), as with a pipe (LD_PRELOAD
 * into the launcher's own processes of Open MPI: mpirun, and a daemon on each node).
 *
 *      rank --pty, pipe--> daemon [--connection--> daemon] --connection--> launcher --pipe--> holder
 *
 * Both read whatever comes, and queue in memory the bytes they cannot pass on. They wait in poll() (Open MPI 4:
 * output_poll.c) or epoll_wait() (Open MPI 5: output_epoll.c), so there a descriptor that brings output is not reported
 * as readable while the way on has a queue: in the daemon of a node its connection to the next one when it waits until
 * that takes more, in the launcher a full pipe. While the daemon's connection takes more, one descriptor that brings
 * output is reported with each call, as the daemon writes one message for each. All else is reported: daemons always
 * read the connection to the launcher, so signals, standard input and the end of a job are not held up. The bytes that
 * an ended rank has left in its pipes have an end, so they are read (POLLHUP).
 *
 * Once the launcher ends the job, it reads all, as it needs the messages of its daemons, and ranks write no more.
 *
 * Invariants: nothing is kept between two calls but the kind of each descriptor; no call returns later than its
 * timeout, one may return 0 before it. In any other process the call is the C library's own. Ranks do not get the
 * library: it takes itself out of the environment.
 */
#include "output.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    PIPES = 1024,
    BESIDE = 64 << 10, /* bytes that daemons exchange beside output */
    SIGSET = 8, /* bytes of the kernel's sigset_t */
};

/* Variables of the launcher's library that are set when the job is to end. */
static const char *const ENDINGS[] = {"orte_abnormal_term_ordered", "orte_orteds_term_ordered",
                                      "prte_abnormal_term_ordered", "prte_prteds_term_ordered"};
static const char *const DAEMONS[] = {"orted", "prted"};

static const volatile bool *endings[sizeof ENDINGS / sizeof *ENDINGS];
bool is_launcher, is_daemon;
static _Atomic ino_t pipes_of_ranks[PIPES]; /* by descriptor: the last pipe whose other end was another process's */

int kernel_poll(struct pollfd *set, nfds_t count, struct timespec *left)
{
    return (int)syscall(SYS_ppoll, set, count, left, NULL, SIGSET);
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

/* Of a connection of a daemon to another: whether more came from there than went there. Most of all is output, so this
 * shows which of the two is nearer to the launcher, whichever has connected to the other. */
static bool comes_from(int fd)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;

    return is_of_network(fd) && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
           info.tcpi_bytes_received > info.tcpi_bytes_acked + BESIDE;
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

bool brings_output(int fd)
{
    struct stat file;

    if (fd <= STDERR_FILENO || is_pty(fd))
        return fd > STDERR_FILENO;
    if (fstat(fd, &file) < 0)
        return false;
    if (S_ISSOCK(file.st_mode))
        return comes_from(fd);
    if (!S_ISFIFO(file.st_mode) || (!is_known_pipe(fd, &file) && is_our_own(&file)))
        return false;
    if (fd < PIPES)
        pipes_of_ranks[fd] = file.st_ino;
    return true;
}

bool is_known_to_bring_output(int fd)
{
    struct stat file;

    if (fd <= STDERR_FILENO || is_pty(fd))
        return fd > STDERR_FILENO;
    return fstat(fd, &file) == 0 && (S_ISSOCK(file.st_mode) ? comes_from(fd) : is_known_pipe(fd, &file));
}

bool takes_output(int fd)
{
    return is_of_network(fd) && !comes_from(fd);
}

bool feeds_launcher(int fd)
{
    return fd == STDIN_FILENO || (is_of_network(fd) && option(fd, SO_ACCEPTCONN) == 0);
}

bool is_ending(void)
{
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (endings[i] && *endings[i])
            return true;
    return false;
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
    for (size_t i = 0; i < sizeof DAEMONS / sizeof *DAEMONS; i++)
        is_daemon = is_daemon || strcmp(program_invocation_short_name, DAEMONS[i]) == 0;
    if (is_launcher)
        leave_environment();
}
