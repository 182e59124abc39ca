/* Sockets with the contents of their buffers. */
#include "objects.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <net/if.h>
#include <sys/socket.h>
#include <sys/un.h>

static int ends[2], fd;
static size_t sent[2];
static char text[128];

static const char *pair(int type)
{
    NEED(!socketpair(AF_UNIX, type, 0, ends));
    NEED(write(ends[0], "first", 5) == 5 && write(ends[0], "second", 6) == 6 && write(ends[1], "back", 4) == 4);
    return OK;
}
static const char *make_unix_stream(void) { return pair(SOCK_STREAM); }
static const char *make_unix_dgram(void) { return pair(SOCK_DGRAM); }
static const char *make_unix_packets(void) { return pair(SOCK_SEQPACKET); }
static const char *check_unix_stream(void)
{
    NEED(recv(ends[1], text, 11, MSG_WAITALL) == 11 && !memcmp(text, "firstsecond", 11));
    NEED(read(ends[0], text, sizeof text) == 4);
    return OK;
}
static const char *check_unix_packets(void)
{
    NEED(read(ends[1], text, sizeof text) == 5 && read(ends[1], text, sizeof text) == 6);
    NEED(read(ends[0], text, sizeof text) == 4);
    return OK;
}

static struct sockaddr_in local(int port)
{
    struct sockaddr_in made = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

    made.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return made;
}

static const char *make_udp(void)
{
    struct sockaddr_in address = local(4711);

    fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    NEED(!bind(fd, (void *)&address, sizeof address));
    return OK;
}
static const char *check_udp(void)
{
    struct sockaddr_in address = local(4711);

    NEED(sendto(fd, "late", 4, 0, (void *)&address, sizeof address) == 4);
    for (int i = 0; i < 50 && recv(fd, text, sizeof text, 0) != 4; i++)
        sleep_ms(10);
    return memcmp(text, "late", 4) ? "nothing comes" : OK;
}
static const char *make_udp_unread(void)
{
    struct sockaddr_in address = local(4712);

    fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    NEED(!bind(fd, (void *)&address, sizeof address));
    NEED(sendto(fd, "early", 5, 0, (void *)&address, sizeof address) == 5);
    return OK;
}
static const char *check_udp_unread(void)
{
    NEED(recv(fd, text, sizeof text, 0) == 5);
    return OK;
}

static const char *make_multicast(void)
{
    struct ip_mreqn group = {.imr_ifindex = (int)if_nametoindex("lo")};

    inet_aton("239.1.2.3", &group.imr_multiaddr);
    fd = socket(AF_INET, SOCK_DGRAM, 0);
    NEED(!setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group));
    return OK;
}
static const char *check_multicast(void)
{
    char line[256];
    FILE *file = fopen("/proc/self/net/igmp", "r");

    while (file && fgets(line, sizeof line, file))
        if (strstr(line, "030201EF"))
            return OK;
    return "it is no member";
}

static const char *tcp(int port)
{
    struct sockaddr_in address = local(port);

    fd = socket(AF_INET, SOCK_STREAM, 0);
    NEED(!bind(fd, (void *)&address, sizeof address) && !listen(fd, 8));
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    NEED(!connect(ends[0], (void *)&address, sizeof address) && (ends[1] = accept(fd, NULL, NULL)) >= 0);
    return OK;
}
static const char *make_tcp(void)
{
    int on = 1, size = 200000;
    struct linger linger = {1, 3};

    NEED(!*tcp(4721));
    NEED(write(ends[0], "firstsecond", 11) == 11 && write(ends[1], "back", 4) == 4);
    NEED(!setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    NEED(!setsockopt(ends[0], SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
    NEED(!setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
    NEED(!setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    return OK;
}
static int option(int level, int name)
{
    int value = -1;
    socklen_t size = sizeof value;

    getsockopt(ends[0], level, name, &value, &size);
    return value;
}
static const char *check_tcp(void)
{
    struct linger linger = {0};
    socklen_t size = sizeof linger;

    NEED(!*check_unix_stream());
    NEED(option(IPPROTO_TCP, TCP_NODELAY) == 1 && option(SOL_SOCKET, SO_KEEPALIVE) == 1);
    NEED(option(SOL_SOCKET, SO_SNDBUF) == 400000);
    NEED(!getsockopt(ends[0], SOL_SOCKET, SO_LINGER, &linger, &size) && linger.l_onoff && linger.l_linger == 3);
    return OK;
}
static const char *make_tcp_half_closed(void)
{
    NEED(!*tcp(4722));
    NEED(write(ends[0], "last", 4) == 4 && !shutdown(ends[0], SHUT_WR));
    return OK;
}
static const char *check_tcp_half_closed(void)
{
    NEED(read(ends[1], text, sizeof text) == 4 && read(ends[1], text, sizeof text) == 0);
    NEED(write(ends[1], "back", 4) == 4 && read(ends[0], text, sizeof text) == 4);
    return OK;
}
/* Both directions are full, so that the end that is restored first has data that its peer has no room for. */
static unsigned char counting[1 << 16]; /* 0, 1, … 255, 0, … */
static const char *make_tcp_unsent(void)
{
    NEED(!*tcp(4724));
    for (size_t at = 0; at < sizeof counting; at++)
        counting[at] = (unsigned char)at;
    for (int i = 0; i < 2; i++) {
        ssize_t went;

        while ((went = send(ends[i], counting + sent[i] % 256, sizeof counting - 256, MSG_DONTWAIT)) > 0)
            sent[i] += (size_t)went;
        NEED(errno == EAGAIN);
    }
    return OK;
}
static const char *check_tcp_unsent(void)
{
    static unsigned char got[sizeof counting - 256];

    for (int i = 0; i < 2; i++)
        for (size_t at = 0; at < sent[i];) {
            ssize_t came = read(ends[!i], got, sizeof got);

            NEED(came > 0 && !memcmp(got, counting + at % 256, (size_t)came));
            at += (size_t)came;
        }
    return OK;
}
static const char *make_tcp_backlog(void)
{
    struct sockaddr_in address = local(4723);

    NEED(!*tcp(4723));
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    NEED(!connect(ends[0], (void *)&address, sizeof address));
    return OK;
}
static const char *check_tcp_backlog(void)
{
    NEED((ends[1] = accept(fd, NULL, NULL)) >= 0 && write(ends[1], "back", 4) == 4);
    NEED(read(ends[0], text, sizeof text) == 4);
    return OK;
}

#define CASE(name, check) {#name, make_##name, check}
const struct object sockets[] = {
    CASE(unix_stream, check_unix_stream), CASE(unix_dgram, check_unix_packets), CASE(unix_packets, check_unix_packets),
    CASE(udp, check_udp), CASE(udp_unread, check_udp_unread),
    CASE(multicast, check_multicast), CASE(tcp, check_tcp), CASE(tcp_half_closed, check_tcp_half_closed),
    CASE(tcp_unsent, check_tcp_unsent), CASE(tcp_backlog, check_tcp_backlog), {0},
};
