/* See join.h. */
#include "join.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "../../shared/user_area.h"

#define SECRET_MIN 16 /* bytes: fewer could be found by trying them out against a recorded handshake */

/* A process with everything fits in; without the right to exceed the system's limit, what that allows. */
static void set_room(int fd)
{
    const int room = FRAME_MAX;

    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) < 0)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)) < 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
}

/*
 * TCP's initial window is 14 KB, doubled each round trip. For a process that is sent in one go, that would add half a
 * millisecond and more to the downtime. So the first connection grows the congestion windows of both directions before
 * they are needed; an idle connection keeps them where the system allows (tcp_slow_start_after_idle).
 */
static void connected(struct channel *channel, int fd, uint64_t received)
{
    static uint8_t nothing[USER_SIZE];
    const struct iovec part = {nothing, sizeof(nothing)};
    bool first = channel->sent == 0;

    channel_connect(channel, fd, received);
    if (first)
        channel_send_iov(channel, FRAME_NOTHING, 0, 0, "", 0, &part, 1);
}

static void set_options(int fd)
{
    const int on = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

static void set_timeout(int fd, int ms)
{
    const struct timeval limit = {ms / 1000, ms % 1000 * 1000};

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

static bool is_over(int64_t since, int ms)
{
    return shared_now() - since > ms * 1000000ll;
}

static bool is_same_build(const struct hello *one, const struct hello *two)
{
    return one->build == two->build && one->xfeatures == two->xfeatures && one->xsize == two->xsize;
}

static void drop(struct handshake *handshake)
{
    close(handshake->fd);
    handshake->since = 0;
}

void join_accept(struct net *net)
{
    struct handshake *handshake = &net->handshakes[0];
    int fd = accept4(net->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0)
        return;
    for (int i = 1; i < HANDSHAKE_MAX; i++)
        if (net->handshakes[i].since < handshake->since)
            handshake = &net->handshakes[i];
    if (handshake->since)
        drop(handshake);
    *handshake = (struct handshake){.fd = fd, .since = shared_now()};
    set_options(fd);
    if (auth_challenge(fd, handshake->nonce) < 0)
        drop(handshake);
}

/* The greeting is complete. */
static void admit(struct net *net, struct handshake *handshake)
{
    const struct greeting *other = &handshake->greeting;
    uint32_t host = other->hello.host;
    bool known = auth_check(&net->secret, other, handshake->nonce) == 0 && host && host < net->hosts &&
                 !net->gone[host];

    if (known && !is_same_build(&other->hello, &net->hello)) {
        fprintf(stderr, "wherry-tiles: the board of host %u is of another build, or its CPU is another\n", host);
        known = false;
    }
    if (!known || auth_answer(handshake->fd, &net->secret, &net->hello, net->channels[host].received, other,
                              handshake->nonce) < 0) {
        drop(handshake);
        return;
    }
    connected(&net->channels[host], handshake->fd, other->head.received);
    handshake->since = 0;
}

static void read_greeting(struct net *net, struct handshake *handshake)
{
    size_t left = sizeof(handshake->greeting) - handshake->count;
    ssize_t count = recv(handshake->fd, (uint8_t *)&handshake->greeting + handshake->count, left, MSG_DONTWAIT);

    if (count < 0 && (errno == EAGAIN || errno == EINTR) && !is_over(handshake->since, HELLO_MS))
        return;
    handshake->count += count > 0 ? (size_t)count : 0;
    if (count <= 0)
        drop(handshake);
    else if (handshake->count == sizeof(handshake->greeting))
        admit(net, handshake);
}

void join_serve(struct net *net)
{
    for (int i = 0; i < HANDSHAKE_MAX; i++)
        if (net->handshakes[i].since)
            read_greeting(net, &net->handshakes[i]);
}

int join_leader(struct net *net)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), error;
    struct greeting leader;

    if (fd < 0)
        return -errno;
    set_room(fd); /* before the connection, which agrees on a window */
    set_options(fd);
    set_timeout(fd, HELLO_MS);
    error = connect(fd, (const struct sockaddr *)&net->leader, sizeof(net->leader)) < 0 ? -errno : 0;
    if (error == 0)
        error = auth_join(fd, &net->secret, &net->hello, net->channels[0].received, &leader);
    if (error == 0)
        connected(&net->channels[0], fd, leader.head.received);
    else
        close(fd);
    return error;
}

int join_listen(struct net *net)
{
    const int on = 1;

    net->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (net->listen_fd < 0)
        return -errno;
    setsockopt(net->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    set_room(net->listen_fd);
    if (bind(net->listen_fd, (const struct sockaddr *)&net->leader, sizeof(net->leader)) < 0 ||
        listen(net->listen_fd, HOST_MAX) < 0 ||
        getsockname(net->listen_fd, (struct sockaddr *)&net->leader, &(socklen_t){sizeof(net->leader)}) < 0)
        return -errno;
    printf("{\"event\": \"listening\", \"port\": %u}\n", ntohs(net->leader.sin_port));
    fflush(stdout);
    return 0;
}

static int read_address(struct net *net, const char *text)
{
    const char *colon = strrchr(text, ':');
    char host[INET_ADDRSTRLEN] = "";

    if (!colon || (size_t)(colon - text) >= sizeof(host))
        return -EINVAL;
    memcpy(host, text, (size_t)(colon - text));
    net->leader.sin_family = AF_INET;
    net->leader.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    if (inet_pton(AF_INET, host, &net->leader.sin_addr) != 1)
        return -EINVAL;
    return net->leader.sin_port || net->host == 0 ? 0 : -EINVAL; /* only the leader may listen on any free port */
}

/* Removed from the environment, which the tiles inherit. */
static int read_secret(struct net *net)
{
    const char *secret = getenv("WHERRY_TILES_SECRET");

    net->secret.size = secret ? strnlen(secret, SECRET_MAX) : 0;
    if (net->secret.size < SECRET_MIN)
        return -EACCES;
    memcpy(net->secret.bytes, secret, net->secret.size);
    return unsetenv("WHERRY_TILES_SECRET") < 0 ? -errno : 0;
}

int join_configure(struct net *net, const char *leader)
{
    int error = leader ? read_address(net, leader) : -EINVAL;

    clock_identify(&net->clock);
    net->hello = (struct hello){net->host, net->shared->build, net->shared->xfeatures, net->shared->xsize};
    return error == 0 ? read_secret(net) : error;
}
