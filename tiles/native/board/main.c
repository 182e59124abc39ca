/*
 *   wherry-tiles --socket PATH --tiles N --cores N [--mesh WxH --hop NANOSECONDS]
 *                [--layout N,N,... --host N --leader ADDRESS:PORT]
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
 *   loads                              loads: CPU time of tiles, messages of each process to each other
 *   down                               down
 *   (any command that it refuses)      refused, with a code and why
 *
 * With --mesh the tiles of each host have places on a network on chip, and a message is under way for --hop for each hop
 * between them (shared/mesh.h).
 *
 * With tiles on several hosts, each has this program: --layout has the number of tiles of each, --host its own number,
 * --leader where host 0 listens for the others. They authenticate each other by WHERRY_TILES_SECRET in the environment
 * (16 bytes or more). Only host 0 serves commands.
 *
 * On standard output: of host 0 of several, {"event": "listening", "port": N}; then {"event": "ready"} once, or
 * {"event": "failed", "why": TEXT}. When the program ends, by `down`, SIGTERM or SIGKILL, every tile ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "../shared/cpu.h"
#include "../shared/mesh.h"
#include "commands.h"
#include "tile_processes.h"

#define WATCH_MS 50 /* how often it checks whether the other hosts are alive, and whether a move has stalled */

/*
 * Taking over the socket of a name server that still runs would cut off its clients: a lock, freed however the owner
 * ends.
 */
static int lock(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct stat facts;

    if (fd < 0)
        return -errno;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0 || fstat(fd, &facts) < 0 || facts.st_nlink == 0) { /* 0: its owner is ending */
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

static void read_signals(struct board *board, int signal_fd)
{
    struct signalfd_siginfo what;

    while (read(signal_fd, &what, sizeof(what)) == sizeof(what)) {
        if (what.ssi_signo == SIGCHLD)
            tiles_reap(board->shared);
        else
            board->stopping = true;
    }
}

static void serve_clients(struct board *board, const struct pollfd fds[CLIENT_MAX])
{
    for (int i = 0; i < CLIENT_MAX; i++) {
        struct client *client = &board->clients.all[i];

        if (fds[i].revents & POLLOUT && client->fd == fds[i].fd)
            client_write(client);
        if (fds[i].revents & ~POLLOUT && client->fd == fds[i].fd)
            commands_read(board, client);
    }
}

/* One turn: waits until there is something to do, and does it. */
static void serve(struct board *board, int event_fd, int signal_fd)
{
    struct pollfd fds[3 + CLIENT_MAX + 1 + HOST_MAX + HANDSHAKE_MAX] = {
        {event_fd, POLLIN, 0},
        {signal_fd, POLLIN, 0},
        {board->clients.listen_fd, POLLIN, 0},
    };
    eventfd_t count;
    int others;

    for (int i = 0; i < CLIENT_MAX; i++) {
        const struct client *client = &board->clients.all[i];

        fds[3 + i] = (struct pollfd){client->fd, (short)(POLLIN | (client->queued ? POLLOUT : 0)), 0};
    }
    others = membership_poll(&board->net, fds + 3 + CLIENT_MAX);
    if (poll(fds, 3 + CLIENT_MAX + (nfds_t)others, others || moves_is_under_way(&board->moves) ? WATCH_MS : -1) < 0)
        return;
    if (fds[0].revents)
        eventfd_read(event_fd, &count);
    if (fds[1].revents)
        read_signals(board, signal_fd);
    serve_clients(board, fds + 3);
    if (fds[2].revents)
        client_accept(&board->clients);
    board_serve(board, fds + 3 + CLIENT_MAX, others);
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

struct options {
    const char *socket_path, *layout, *leader, *mesh;
    unsigned long tiles, cores, hop;
    uint32_t host;
};

static struct options read_options(int argc, char **argv)
{
    static const struct option known[] = {
        {"socket", required_argument, NULL, 's'},
        {"tiles", required_argument, NULL, 't'},
        {"cores", required_argument, NULL, 'c'},
        {"layout", required_argument, NULL, 'l'},
        {"host", required_argument, NULL, 'h'},
        {"leader", required_argument, NULL, 'a'},
        {"mesh", required_argument, NULL, 'm'},
        {"hop", required_argument, NULL, 'n'},
        {NULL, 0, NULL, 0},
    };
    struct options options = {0};
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 's')
            options.socket_path = optarg;
        else if (option == 't')
            options.tiles = strtoul(optarg, NULL, 10);
        else if (option == 'c')
            options.cores = strtoul(optarg, NULL, 10);
        else if (option == 'l')
            options.layout = optarg;
        else if (option == 'h')
            options.host = (uint32_t)strtoul(optarg, NULL, 10);
        else if (option == 'a')
            options.leader = optarg;
        else if (option == 'm')
            options.mesh = optarg;
        else if (option == 'n')
            options.hop = strtoul(optarg, NULL, 10);
    }
    return options;
}

/* From the start of the tiles to their end. Returns 0 or negative errno. */
static int run(struct board *board, const struct options *options, int shared_fd, int event_fd, int signal_fd)
{
    int error = tiles_start(board->shared, shared_fd, event_fd);

    if (error == 0)
        error = membership_wait_for_all(&board->net);
    if (error == 0) {
        printf("{\"event\": \"ready\", \"tiles\": %lu, \"cores\": %lu}\n", options->tiles, options->cores);
        fflush(stdout);
        if (options->layout)
            cpu_ask_precedence();
        while (!board->stopping && !board->net.stopping)
            serve(board, event_fd, signal_fd);
    }
    membership_stop(&board->net);
    tiles_stop(board->shared, board->net.leader_lost);
    return error;
}

int main(int argc, char **argv)
{
    static struct board board;
    const struct options options = read_options(argc, argv);
    int signal_fd, event_fd, shared_fd, error;
    struct shared_memory *shared;
    char lock_path[PATH_MAX];

    if (!options.socket_path || !in_range(options.tiles, 1, TILE_MAX) || !in_range(options.cores, 2, 16)) {
        fprintf(stderr, "usage: wherry-tiles --socket PATH --tiles 1..16 --cores 2..16 (the master core included)\n");
        return 2;
    }
    signal_fd = open_signals();
    event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    shared_fd = shared_create((uint32_t)options.tiles, (uint32_t)options.cores, &shared);
    if (shared_fd < 0)
        return fail("make the tiles' memory", strerror(-shared_fd));
    shared_set_gateway(event_fd);
    board_init(&board, shared);
    error = membership_start(&board.net, options.host, options.layout, options.leader);
    if (error < 0)
        return fail("reach the other hosts", strerror(-error));
    if (options.mesh && mesh_declare(shared, options.mesh, options.hop, shared->here) < 0)
        return fail("lay out the mesh", "WIDTHxHEIGHT with a place for each tile of a host, and a hop of 1 ns to 10 ms");
    snprintf(lock_path, sizeof(lock_path), "%s.lock", options.socket_path);
    error = lock(lock_path);
    if (error == -EADDRINUSE)
        return fail("listen on the socket", "tiles are up there already");
    board.clients.listen_fd = error < 0 ? error : listen_at(options.socket_path);
    if (board.clients.listen_fd < 0)
        return fail("listen on the socket", strerror(-board.clients.listen_fd));
    error = run(&board, &options, shared_fd, event_fd, signal_fd);
    unlink(options.socket_path);
    unlink(lock_path);
    return error < 0 ? fail("start the tiles", strerror(-error)) : 0;
}
