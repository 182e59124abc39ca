/*
 * wherry-connect: carries bytes between its standard streams and a TCP port, for a user who is elsewhere.
 *
 *   wherry-connect ADDRESS PORT
 *
 * ADDRESS is one of IPv4 or IPv6. Its first byte of output is '+', when it is connected; else it ends with 1 and a line
 * on the standard error. The end of its input is passed on to the other side. It ends when the other side does: with 0,
 * or with 1 when the connection was reset.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wherry/number.h"
#include "wherry/process.h"

enum {
    CHUNK = 64 << 10,
    CONNECT_MS = 10000,
};

/* One direction. A descriptor is -1 once it has ended. */
struct way {
    int from, to;
    uint8_t bytes[CHUNK];
    size_t have, sent;
};

static _Noreturn void fail(const char *what, int error)
{
    fprintf(stderr, "cannot %s: %s\n", what, strerror(error));
    exit(1);
}

static int connected(const char *address, uint16_t port)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    bool is_four = inet_pton(AF_INET, address, &four.sin_addr) == 1;
    struct pollfd ready = {.events = POLLOUT};
    int one = 1, error = 0;
    socklen_t size = sizeof error;

    if (!is_four && inet_pton(AF_INET6, address, &six.sin6_addr) != 1)
        return -EINVAL;
    ready.fd = socket(is_four ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (ready.fd < 0)
        return -errno;
    if ((is_four ? connect(ready.fd, (struct sockaddr *)&four, sizeof four)
                 : connect(ready.fd, (struct sockaddr *)&six, sizeof six)) < 0) {
        if (errno != EINPROGRESS)
            return -errno;
        if (poll(&ready, 1, CONNECT_MS) != 1)
            return -ETIMEDOUT;
        if (getsockopt(ready.fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0 || error)
            return -(error ? error : errno);
    }
    setsockopt(ready.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return ready.fd;
}

/* The end of a direction: the other side of `to` reads the end. */
static void end(struct way *way, int socket)
{
    if (way->to == socket)
        shutdown(socket, SHUT_WR);
    else if (way->to >= 0)
        close(way->to);
    way->from = way->to = -1;
}

/* Moves the bytes that can be moved now. A receiver that is gone ends the direction. */
static void move(struct way *way, int socket)
{
    ssize_t count;

    if (way->from < 0)
        return;
    if (way->sent == way->have) {
        count = read(way->from, way->bytes, CHUNK);
        if (count < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (count < 0 && way->from == socket)
            fail("read from the connection", errno);
        if (count <= 0) {
            end(way, socket);
            return;
        }
        way->have = (size_t)count;
        way->sent = 0;
    }
    count = write(way->to, way->bytes + way->sent, way->have - way->sent);
    if (count >= 0)
        way->sent += (size_t)count;
    else if (errno != EAGAIN && errno != EINTR)
        end(way, socket);
}

static struct pollfd awaited(const struct way *way)
{
    if (way->sent < way->have)
        return (struct pollfd){.fd = way->to, .events = POLLOUT};
    return (struct pollfd){.fd = way->from, .events = POLLIN};
}

int main(int argc, char **argv)
{
    static struct way there = {.from = STDIN_FILENO}, back = {.to = STDOUT_FILENO};
    uint64_t port;
    int socket;

    if (argc != 3 || number_parse(argv[2], strlen(argv[2]), UINT16_MAX, &port) < 0) {
        fputs("usage: wherry-connect ADDRESS PORT\n", stderr);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    socket = connected(argv[1], (uint16_t)port);
    if (socket < 0)
        fail("connect", -socket);
    if (process_write_all(STDOUT_FILENO, "+", 1) < 0)
        return 1;
    there.to = back.from = socket;
    for (int fd = 0; fd < 2; fd++)
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    while (back.from >= 0) {
        struct pollfd polls[2] = {awaited(&there), awaited(&back)};

        poll(polls, 2, -1);
        move(&there, socket);
        move(&back, socket);
    }
    return 0;
}
