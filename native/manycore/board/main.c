/*
 *   wherry-tiles --socket PATH --tiles N --cores N [--layout N,N,... --host N --leader ADDRESS:PORT]
 *
 * Starts the tiles and serves commands on a Unix socket, one command a connection, words separated by tabs, answers as
 * JSON lines:
 *
 *   run TILE|any PROGRAM ARGUMENT...   started, output..., then ended or lost
 *   ranks COUNT PROGRAM ARGUMENT...    started, output..., then ended or lost of each
 *   start TILE|any PROGRAM ARGUMENT... started
 *   attach PROCESS[:FROM]...           output from byte FROM on..., then ended or lost, of each
 *   move MODE [PROCESS TILE]...        moved, or failed, of each, begun together
 *   await NAME                         named, when a program has linked it
 *   ps                                 tiles
 *   loads                              loads: CPU time of tiles, who has said how much to whom
 *   down                               down
 *   (anything it will not do)          refused, with a code and why
 *
 * With tiles on several hosts, each has this program: --layout says how many tiles each has, --host which it is, --leader
 * where host 0 listens for the others. WHERRY_TILES_SECRET in the environment (16 bytes or more) is what they know each other
 * by; only host 0 serves commands.
 *
 * On standard output: of host 0 of several, {"event": "listening", "port": N}; then {"event": "ready"} once, or {"event": "failed", "why": TEXT}. When it ends, by `down`, SIGTERM or
 * SIGKILL, every tile ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "../cpu.h"
#include "board.h"

#define TEND_MS 50 /* how often it looks whether the other hosts are there, and whether a move stands still */

/* Nobody else listens there, or it would lose its socket to us: a lock, which ends with us however we end. */
static int lock(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct stat facts;

    if (fd < 0)
        return -errno;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0 || fstat(fd, &facts) < 0 || facts.st_nlink == 0) { /* 0: it is just ending */
        close(fd);
        return -EADDRINUSE;
    }
    return 0;
}

static int listen_at(const char *path)
{
    mode_t before;
    int error;

    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -errno;
    if (strlen(path) >= sizeof(address.sun_path)) {
        close(fd);
        return -ENAMETOOLONG;
    }
    strcpy(address.sun_path, path);
    unlink(path);
    before = umask(0177);
    error = bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, CLIENT_MAX) < 0 ? -errno : 0;
    umask(before);
    if (error < 0)
        close(fd);
    return error < 0 ? error : fd;
}

static int open_signals(void)
{
    sigset_t mask;

    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void take_signals(struct board *board)
{
    struct signalfd_siginfo what;

    while (read(board->signal_fd, &what, sizeof(what)) == sizeof(what)) {
        if (what.ssi_signo == SIGCHLD)
            launch_reap(board);
        else
            board->stopping = true;
    }
}

static void serve(struct board *board)
{
    struct pollfd fds[3 + CLIENT_MAX + 1 + HOST_MAX + GUEST_MAX] = {
        {board->event_fd, POLLIN, 0},
        {board->signal_fd, POLLIN, 0},
        {board->listen_fd, POLLIN, 0},
    };
    eventfd_t count;
    int others;

    for (int i = 0; i < CLIENT_MAX; i++)
        fds[3 + i] = (struct pollfd){board->clients[i].fd, (short)(POLLIN | (board->clients[i].queued ? POLLOUT : 0)), 0};
    others = net_poll(board, fds + 3 + CLIENT_MAX);
    if (poll(fds, 3 + CLIENT_MAX + (nfds_t)others, others || moves_is_under_way(board) ? TEND_MS : -1) < 0)
        return;
    if (fds[0].revents)
        eventfd_read(board->event_fd, &count);
    if (fds[1].revents)
        take_signals(board);
    for (int i = 0; i < CLIENT_MAX; i++) {
        if (fds[3 + i].revents & POLLOUT && board->clients[i].fd == fds[3 + i].fd)
            client_write(&board->clients[i]);
        if (fds[3 + i].revents & ~POLLOUT && board->clients[i].fd == fds[3 + i].fd)
            client_read(board, &board->clients[i]);
    }
    if (fds[2].revents)
        client_accept(board);
    net_serve(board, fds + 3 + CLIENT_MAX, others);
    moves_serve(board);
    if (board->net.host != 0)
        return; /* what programs say here goes to the leader */
    names_serve(board);
    client_serve(board);
}

static int fail(const char *what, const char *why)
{
    printf("{\"event\": \"failed\", \"why\": \"cannot %s: %s\"}\n", what, why);
    return 1;
}

static bool in_range(unsigned long value, unsigned long low, unsigned long high)
{
    return value >= low && value <= high;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"socket", required_argument, NULL, 's'},
        {"tiles", required_argument, NULL, 't'},
        {"cores", required_argument, NULL, 'c'},
        {"layout", required_argument, NULL, 'l'},
        {"host", required_argument, NULL, 'h'},
        {"leader", required_argument, NULL, 'a'},
        {NULL, 0, NULL, 0},
    };
    static struct board board;
    const char *layout = NULL, *leader = NULL;
    unsigned long tiles = 0, cores = 0;
    char lock_path[PATH_MAX];
    int option, error;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 's')
            board.socket_path = optarg;
        else if (option == 't')
            tiles = strtoul(optarg, NULL, 10);
        else if (option == 'c')
            cores = strtoul(optarg, NULL, 10);
        else if (option == 'l')
            layout = optarg;
        else if (option == 'h')
            board.net.host = (uint32_t)strtoul(optarg, NULL, 10);
        else if (option == 'a')
            leader = optarg;
    }
    if (!board.socket_path || !in_range(tiles, 1, TILE_MAX) || !in_range(cores, 2, 16)) {
        fprintf(stderr, "usage: wherry-tiles --socket PATH --tiles 1..16 --cores 2..16 (the master core included)\n");
        return 2;
    }
    for (int i = 0; i < CLIENT_MAX; i++)
        board.clients[i].fd = -1;
    board.signal_fd = open_signals();
    board.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    board.window_fd = window_create((uint32_t)tiles, (uint32_t)cores, &board.window);
    if (board.window_fd < 0)
        return fail("make the tiles' memory", strerror(-board.window_fd));
    error = net_start(&board, layout, leader);
    if (error < 0)
        return fail("reach the other hosts", strerror(-error));
    snprintf(lock_path, sizeof(lock_path), "%s.lock", board.socket_path);
    error = lock(lock_path);
    if (error == -EADDRINUSE)
        return fail("listen on the socket", "tiles are up there already");
    board.listen_fd = error < 0 ? error : listen_at(board.socket_path);
    if (board.listen_fd < 0)
        return fail("listen on the socket", strerror(-board.listen_fd));
    error = launch_tiles(&board);
    if (error == 0)
        error = net_wait_for_all(&board);
    if (error == 0) {
        printf("{\"event\": \"ready\", \"tiles\": %lu, \"cores\": %lu}\n", tiles, cores);
        fflush(stdout);
        if (layout)
            cpu_ask_precedence();
        while (!board.stopping)
            serve(&board);
    }
    net_stop(&board);
    launch_stop(&board);
    unlink(board.socket_path);
    unlink(lock_path);
    return error < 0 ? fail("start the tiles", strerror(-error)) : 0;
}
