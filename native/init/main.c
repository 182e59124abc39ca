/*
 * wherry-init: the first process of a container node.
 *
 *   wherry-init --listen ADDRESS:PORT --key-file FILE --user UID:GID:GROUPS
 *
 * It reaps every process of the node and starts programs of that user (owner.h) for clients that have the key
 * (wherry/wire.h). CRIU dumps it with everything below it and restores it elsewhere, hence: it holds no file of the host
 * open (its streams are the node's own /dev/null), it uses nothing but sockets, pipes and poll, and every program stays
 * below it. SIGTERM ends the node: SIGTERM to all, SIGKILL five seconds later to the others.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "admission.h"
#include "session.h"
#include "wherry/number.h"
#include "wherry/process.h"

enum {
    SESSIONS_MAX = 256, /* proved clients: more than ranks on one node; the rest waits in the backlog */
    ACCEPT_AT_ONCE = 8,
    PLACES = SESSIONS_MAX + ACCEPT_AT_ONCE + ADMISSION_MAX, /* however many of the unproved prove themselves */
    BACKLOG = 256,
    GRACE_MS = 5000,    /* between SIGTERM and SIGKILL */
    STEP_MS = 2000,     /* most that the loop's clock advances at once */
};

static int wakeup[2];
static volatile sig_atomic_t stopping;

static void on_signal(int number)
{
    int saved = errno;

    if (number == SIGTERM)
        stopping = 1;
    (void)!write(wakeup[1], "", 1);
    errno = saved;
}

static _Noreturn void fail(const char *what, const char *object, int error)
{
    fprintf(stderr, "wherry-init: cannot %s %s: %s\n", what, object, strerror(error));
    exit(1);
}

static _Noreturn void usage(void)
{
    fputs("usage: wherry-init --listen ADDRESS:PORT --key-file FILE --user UID:GID:GROUPS\n", stderr);
    exit(2);
}

static void read_key(const char *path, uint8_t *key)
{
    char text[WIRE_KEY + 2];
    ssize_t count;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        fail("open the key file", path, errno);
    count = read(fd, text, sizeof text);
    close(fd);
    if (count == WIRE_KEY + 1 && text[WIRE_KEY] == '\n')
        count--;
    if (count < 0 || wire_check_key(text, (size_t)count) < 0)
        fail("use the key (64 hex digits expected) in", path, EINVAL);
    memcpy(key, text, WIRE_KEY);
}

static int open_listener(char *where)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    char *colon = strrchr(where, ':');
    uint64_t port;
    int fd, yes = 1;

    if (!colon || number_parse(colon + 1, strlen(colon + 1), 65535, &port) < 0)
        usage();
    *colon = 0;
    if (inet_pton(AF_INET, where, &address.sin_addr) != 1)
        usage();
    *colon = ':';
    address.sin_port = htons((uint16_t)port);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) < 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, BACKLOG) < 0)
        fail("listen at", where, errno);
    return fd;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

    if (pipe2(wakeup, O_CLOEXEC | O_NONBLOCK) < 0)
        fail("make", "a pipe", errno);
    sigaction(SIGCHLD, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* Six minutes of silence end a connection: longer than any move freezes a node. */
static void keep_alive(int socket)
{
    int yes = 1, idle = 60, interval = 30, count = 10; /* s, s, probes */

    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

/* A few at a time: each client is read once before later ones can push it out. */
static void accept_clients(int listener, const struct guard *guard, int64_t now)
{
    for (int i = 0; i < ACCEPT_AT_ONCE; i++) {
        struct sockaddr_in from;
        socklen_t size = sizeof from;
        int socket = accept4(listener, (struct sockaddr *)&from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (socket < 0)
            return;
        keep_alive(socket);
        admission_make_room(from.sin_addr);
        if (!session_open(socket, from.sin_addr, guard, now))
            close(socket);
    }
}

static void reap(int64_t now)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (struct session *session = session_list; session; session = session->next)
            if (session->child.pid == pid)
                session_exited(session, status, now);
}

/*
 * The loop's own clock: CLOCK_MONOTONIC may jump when the node is restored elsewhere; a jump must not end a deadline.
 */
static int64_t advance_clock(int64_t *last)
{
    static int64_t clock_ms;
    int64_t now = process_now_ms(), passed = now - *last;

    *last = now;
    clock_ms += passed < 0 ? 0 : passed > STEP_MS ? STEP_MS : passed;
    return clock_ms;
}

static void serve(int listener, const struct guard *guard)
{
    static struct pollfd polls[2 + PLACES * SESSION_POLLS];
    int64_t last = process_now_ms(), now = advance_clock(&last);
    char drain[64];

    while (!stopping) {
        size_t count = 0, proved = 0, at = 2;
        int wait = -1;

        for (struct session *session = session_list; session; session = session->next, count++) {
            int due = session_wait(session, now);

            proved += session->authenticated;
            session_prepare(session, polls + 2 + count * SESSION_POLLS);
            if (due >= 0 && (wait < 0 || due < wait))
                wait = due;
        }
        polls[0] = (struct pollfd){.fd = wakeup[0], .events = POLLIN};
        polls[1] = (struct pollfd){.fd = proved < SESSIONS_MAX ? listener : -1, .events = POLLIN};
        poll(polls, 2 + count * SESSION_POLLS, wait > STEP_MS ? STEP_MS : wait);
        now = advance_clock(&last);
        while (read(wakeup[0], drain, sizeof drain) > 0)
            continue;
        reap(now);
        for (struct session *session = session_list, *next; session; session = next, at += SESSION_POLLS) {
            next = session->next;
            if (!session_step(session, polls + at, now))
                session_free(session);
        }
        if (polls[1].revents)
            accept_clients(listener, guard, now);
    }
}

static void end_node(void)
{
    int64_t last = process_now_ms(), end = advance_clock(&last) + GRACE_MS;

    kill(-1, SIGTERM);
    kill(-1, SIGCONT);
    while (advance_clock(&last) < end) {
        if (waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD)
            return;
        usleep(10000);
    }
    kill(-1, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        continue;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"listen", required_argument, NULL, 'l'},
                                            {"key-file", required_argument, NULL, 'k'},
                                            {"user", required_argument, NULL, 'u'},
                                            {0}};
    static struct guard guard;
    char *where = NULL, *key_file = NULL, *user = NULL;
    int option, listener, error;

    while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
        if (option == 'l')
            where = optarg;
        else if (option == 'k')
            key_file = optarg;
        else if (option == 'u')
            user = optarg;
        else
            usage();
    }
    if (!where || !key_file || !user || owner_parse(&guard.owner, user) < 0 || optind < argc)
        usage();
    if (getpid() != 1)
        fail("run as anything but the first process of a", "PID namespace", EPERM);
    error = process_close_inherited();
    if (error < 0)
        fail("open", "/dev/null", -error);
    read_key(key_file, guard.key);
    listener = open_listener(where);
    catch_signals();
    error = process_detach_streams();
    if (error < 0)
        fail("open", "/dev/null", -error);
    serve(listener, &guard);
    end_node();
    return 0;
}
