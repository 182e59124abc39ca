/* Options of sockets, as their program set them. */
#include "objects.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <net/if.h>
#include <sys/socket.h>

enum { CONNECTED, LISTENING, DATAGRAMS, SIX, CONNECTED_SIX, UNIX, SOCKETS };

static const struct option {
    const char *name;
    int socket, level, option, value;
} options[] = {
#define OPTION(socket, level, option, value) {#option " of " #socket, socket, level, option, value}
    OPTION(CONNECTED, IPPROTO_TCP, TCP_USER_TIMEOUT, 7000), OPTION(CONNECTED, IPPROTO_TCP, TCP_KEEPIDLE, 33),
    OPTION(CONNECTED, IPPROTO_TCP, TCP_KEEPINTVL, 5), OPTION(CONNECTED, IPPROTO_TCP, TCP_KEEPCNT, 4),
    OPTION(CONNECTED, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 16384), OPTION(CONNECTED, IPPROTO_TCP, TCP_LINGER2, 11),
    OPTION(CONNECTED, IPPROTO_TCP, TCP_SYNCNT, 3), OPTION(CONNECTED, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1),
    OPTION(CONNECTED, SOL_SOCKET, SO_RCVLOWAT, 9), OPTION(CONNECTED, IPPROTO_IP, IP_TOS, 0x10),
    OPTION(CONNECTED, SOL_SOCKET, SO_PRIORITY, 0), OPTION(CONNECTED, SOL_SOCKET, SO_OOBINLINE, 1),
    OPTION(CONNECTED, SOL_SOCKET, SO_TIMESTAMP, 1), OPTION(CONNECTED, IPPROTO_IP, IP_TTL, 77),
    OPTION(CONNECTED, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT), OPTION(CONNECTED, SOL_SOCKET, SO_ZEROCOPY, 1),
    OPTION(CONNECTED, SOL_SOCKET, SO_MAX_PACING_RATE, 123456789), OPTION(CONNECTED, IPPROTO_TCP, TCP_INQ, 1),
    OPTION(LISTENING, IPPROTO_TCP, TCP_NODELAY, 1), OPTION(LISTENING, IPPROTO_TCP, TCP_DEFER_ACCEPT, 3),
    OPTION(LISTENING, IPPROTO_TCP, TCP_USER_TIMEOUT, 7000), OPTION(LISTENING, SOL_SOCKET, SO_KEEPALIVE, 1),
    OPTION(LISTENING, SOL_SOCKET, SO_REUSEPORT, 1), OPTION(LISTENING, IPPROTO_TCP, TCP_FASTOPEN, 5),
    OPTION(LISTENING, IPPROTO_IP, IP_TOS, 0x10),
    OPTION(DATAGRAMS, IPPROTO_IP, IP_TTL, 9), OPTION(DATAGRAMS, IPPROTO_IP, IP_TOS, 0x20),
    OPTION(DATAGRAMS, IPPROTO_IP, IP_MULTICAST_TTL, 6), OPTION(DATAGRAMS, IPPROTO_IP, IP_MULTICAST_LOOP, 0),
    OPTION(DATAGRAMS, IPPROTO_IP, IP_RECVERR, 1), OPTION(DATAGRAMS, IPPROTO_IP, IP_PKTINFO, 1),
    OPTION(DATAGRAMS, IPPROTO_IP, IP_RECVTTL, 1), OPTION(DATAGRAMS, IPPROTO_IP, IP_RECVTOS, 1),
    OPTION(DATAGRAMS, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO), OPTION(DATAGRAMS, SOL_SOCKET, SO_BROADCAST, 1),
    OPTION(DATAGRAMS, SOL_SOCKET, SO_TIMESTAMPNS, 1), OPTION(DATAGRAMS, SOL_SOCKET, SO_RXQ_OVFL, 1),
    OPTION(DATAGRAMS, SOL_SOCKET, SO_RCVBUF, 50000), OPTION(DATAGRAMS, SOL_SOCKET, SO_NO_CHECK, 1),
    OPTION(DATAGRAMS, IPPROTO_UDP, 103 /* UDP_SEGMENT */, 1200), OPTION(DATAGRAMS, IPPROTO_UDP, 104 /* UDP_GRO */, 1),
    OPTION(SIX, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 21), OPTION(SIX, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 22),
    OPTION(SIX, IPPROTO_IPV6, IPV6_TCLASS, 0x20), OPTION(SIX, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1),
    OPTION(SIX, IPPROTO_IPV6, IPV6_V6ONLY, 1), OPTION(CONNECTED_SIX, IPPROTO_IPV6, IPV6_TCLASS, 0x10),
    OPTION(UNIX, SOL_SOCKET, SO_TIMESTAMP, 1), OPTION(UNIX, SOL_SOCKET, SO_RCVLOWAT, 3),
};
enum { COUNT = sizeof options / sizeof *options };
static int made[SOCKETS], other, values[COUNT];

static int value_of(const struct option *one)
{
    int value = 0;
    socklen_t size = sizeof value;

    return getsockopt(made[one->socket], one->level, one->option, &value, &size) ? -1 : value;
}

static const char *set(int first, int last)
{
    for (int i = 0; i < COUNT; i++)
        if (options[i].socket >= first && options[i].socket <= last &&
            setsockopt(made[options[i].socket], options[i].level, options[i].option, &options[i].value, sizeof(int)))
            return wrong("%s: %s", options[i].name, strerror(errno));
    return OK;
}

static const char *make_options(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(4731), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(4732), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    static const int types[SOCKETS] = {SOCK_STREAM, SOCK_STREAM, SOCK_DGRAM, SOCK_DGRAM, SOCK_STREAM, SOCK_DGRAM};
    static const int domains[SOCKETS] = {AF_INET, AF_INET, AF_INET, AF_INET6, AF_INET6, AF_UNIX};
    struct linger linger = {1, 3};
    const char *why;

    for (int i = 0; i < SOCKETS; i++)
        NEED((made[i] = socket(domains[i], types[i], 0)) >= 0);
    if (*(why = set(LISTENING, UNIX)))
        return why;
    NEED(!bind(made[LISTENING], (void *)&address, sizeof address) && !listen(made[LISTENING], 8));
    NEED(!connect(made[CONNECTED], (void *)&address, sizeof address) && write(made[CONNECTED], "x", 1) == 1);
    NEED((other = accept(made[LISTENING], NULL, NULL)) >= 0);
    NEED(!bind(made[SIX], (void *)&six, sizeof six));
    if (*(why = set(CONNECTED, CONNECTED)))
        return why;
    NEED(!setsockopt(made[CONNECTED], IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    NEED(!setsockopt(made[DATAGRAMS], SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    for (int i = 0; i < COUNT; i++)
        values[i] = value_of(&options[i]);
    return OK;
}
static const char *check_options(void)
{
    char name[16] = "";
    struct linger linger = {0};
    socklen_t size = sizeof name, length = sizeof linger;

    for (int i = 0; i < COUNT; i++)
        if (value_of(&options[i]) != values[i])
            return wrong("%s was %d and is %d", options[i].name, values[i], value_of(&options[i]));
    NEED(!getsockopt(made[CONNECTED], IPPROTO_TCP, TCP_CONGESTION, name, &size) && !strcmp(name, "reno"));
    NEED(!getsockopt(made[DATAGRAMS], SOL_SOCKET, SO_LINGER, &linger, &length) && linger.l_onoff && linger.l_linger == 3);
    NEED(write(made[CONNECTED], "12345678", 8) == 8 && recv(other, name, 9, MSG_WAITALL) == 9);
    return OK;
}

static struct sockaddr_in6 six(int port)
{
    return (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
}
/* Both ends and the listener are in the node. */
static const char *make_tcp_six(void)
{
    struct sockaddr_in6 address = six(4733);

    NEED((made[0] = socket(AF_INET6, SOCK_STREAM, 0)) >= 0 && (made[1] = socket(AF_INET6, SOCK_STREAM, 0)) >= 0);
    NEED(!bind(made[1], (void *)&address, sizeof address) && !listen(made[1], 8));
    NEED(!connect(made[0], (void *)&address, sizeof address) && (other = accept(made[1], NULL, NULL)) >= 0);
    NEED(write(made[0], "there", 5) == 5 && write(other, "back", 4) == 4);
    return OK;
}
static const char *check_tcp_six(void)
{
    struct sockaddr_in6 address = six(4733);
    char text[8];
    int next;

    NEED(recv(other, text, 5, MSG_WAITALL) == 5 && !memcmp(text, "there", 5));
    NEED(recv(made[0], text, 4, MSG_WAITALL) == 4 && !memcmp(text, "back", 4));
    NEED((next = socket(AF_INET6, SOCK_STREAM, 0)) >= 0 && !connect(next, (void *)&address, sizeof address));
    NEED((next = accept(made[1], NULL, NULL)) >= 0);
    return OK;
}

static const char *make_multicast_six(void)
{
    struct ipv6_mreq group = {.ipv6mr_interface = if_nametoindex("lo")};

    inet_pton(AF_INET6, "ff05::1234", &group.ipv6mr_multiaddr);
    NEED((made[0] = socket(AF_INET6, SOCK_DGRAM, 0)) >= 0);
    NEED(!setsockopt(made[0], IPPROTO_IPV6, IPV6_JOIN_GROUP, &group, sizeof group));
    return OK;
}
static const char *make_ktls(void)
{
    NEED(!*make_tcp_six());
    NEED(!setsockopt(made[0], IPPROTO_TCP, 31 /* TCP_ULP */, "tls", 3));
    return OK;
}
static const char *check_refused(void) { return "it is not refused"; }

const struct object socket_options[] = {
    {"options", make_options, check_options}, {"tcp_six", make_tcp_six, check_tcp_six},
    {"multicast_six", make_multicast_six, check_refused}, {"ktls", make_ktls, check_refused}, {0},
};
