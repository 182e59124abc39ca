/* Options of sockets that CRIU does not carry; see criu.c, WHERRY_CRIU_OPTIONS. */
#include "proc.h"

#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/netlink.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PREFER_BUSY_POLL /* Linux 5.11 */
#define SO_PREFER_BUSY_POLL 69
#endif
#ifndef SO_RCVMARK /* 5.19 */
#define SO_RCVMARK 75
#endif
#ifndef SO_PASSPIDFD /* 6.5 */
#define SO_PASSPIDFD 76
#endif
#ifndef IP_LOCAL_PORT_RANGE /* 6.3 */
#define IP_LOCAL_PORT_RANGE 51
#endif

struct kind {
    int domain, type, protocol;
};

struct value {
    unsigned char bytes[40];
    socklen_t size; /* 0: there is no such option */
};

/* All that a program can set, the kernel does not change by itself, and a socket in use can be given again; each list ends with 0.
 * CRIU carries the others (SO_REUSEADDR, SO_SNDBUF, SO_RCVTIMEO, SO_BINDTODEVICE, filters, TCP_NODELAY, ...). */
static const int of_ip[] = {
    IP_TOS, IP_TTL, IP_OPTIONS, IP_RECVOPTS, IP_RETOPTS, IP_PKTINFO, IP_MTU_DISCOVER, IP_RECVERR, IP_RECVTTL, IP_RECVTOS,
    IP_TRANSPARENT, IP_RECVORIGDSTADDR, IP_MINTTL, IP_NODEFRAG, IP_CHECKSUM, IP_BIND_ADDRESS_NO_PORT, IP_RECVFRAGSIZE,
    IP_RECVERR_RFC4884, IP_UNICAST_IF, IP_LOCAL_PORT_RANGE, 0,
};
static const int of_ip_groups[] = {IP_MULTICAST_IF, IP_MULTICAST_TTL, IP_MULTICAST_LOOP, IP_MULTICAST_ALL, 0};
static const int of_ipv6[] = {
    IPV6_UNICAST_HOPS, IPV6_MTU_DISCOVER, IPV6_RECVERR, IPV6_RECVERR_RFC4884, IPV6_FLOWINFO_SEND, IPV6_RECVPKTINFO,
    IPV6_RECVHOPLIMIT, IPV6_RECVHOPOPTS, IPV6_RECVRTHDR, IPV6_RECVDSTOPTS, IPV6_RECVPATHMTU, IPV6_DONTFRAG, IPV6_RECVTCLASS,
    IPV6_TCLASS, IPV6_AUTOFLOWLABEL, IPV6_ADDR_PREFERENCES, IPV6_MINHOPCOUNT, IPV6_RECVORIGDSTADDR, IPV6_TRANSPARENT,
    IPV6_UNICAST_IF, IPV6_RECVFRAGSIZE, 0,
};
static const int of_ipv6_groups[] = {IPV6_MULTICAST_IF, IPV6_MULTICAST_HOPS, IPV6_MULTICAST_LOOP, IPV6_MULTICAST_ALL, 0};
static const int of_tcp[] = {
    TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_SYNCNT, TCP_LINGER2, TCP_DEFER_ACCEPT, TCP_CONGESTION, TCP_THIN_LINEAR_TIMEOUTS,
    TCP_USER_TIMEOUT, TCP_FASTOPEN, TCP_NOTSENT_LOWAT, TCP_SAVE_SYN, TCP_FASTOPEN_NO_COOKIE, TCP_INQ, TCP_TX_DELAY, 0,
};
static const int of_udp[] = {UDP_NO_CHECK6_TX, UDP_NO_CHECK6_RX, UDP_SEGMENT, UDP_GRO, 0};
static const int of_packet[] = {PACKET_QDISC_BYPASS, PACKET_IGNORE_OUTGOING, 0};
static const int of_netlink[] = {
    NETLINK_PKTINFO, NETLINK_BROADCAST_ERROR, NETLINK_NO_ENOBUFS, NETLINK_LISTEN_ALL_NSID, NETLINK_CAP_ACK, NETLINK_EXT_ACK,
    NETLINK_GET_STRICT_CHK, 0,
};
static const int of_any[] = {
    SO_DEBUG, SO_DONTROUTE, SO_BROADCAST, SO_KEEPALIVE, SO_OOBINLINE, SO_NO_CHECK, SO_LINGER, SO_RCVLOWAT, SO_PASSSEC, SO_MARK,
    SO_RXQ_OVFL, SO_PEEK_OFF, SO_SELECT_ERR_QUEUE, SO_BUSY_POLL, SO_MAX_PACING_RATE, SO_ZEROCOPY, SO_TIMESTAMP_OLD,
    SO_TIMESTAMPNS_OLD, SO_TIMESTAMPING_OLD, SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW, SO_TIMESTAMPING_NEW, SO_PREFER_BUSY_POLL,
    SO_RCVMARK, SO_PASSPIDFD, SO_PRIORITY, 0,
};

static struct value option_of(int file, int level, int option)
{
    struct value value = {.size = level == SOL_NETLINK || level == SOL_PACKET ? sizeof(int) : sizeof(value.bytes)};

    if (syscall(SYS_getsockopt, file, level, option, value.bytes, &value.size))
        value.size = 0;
    return value;
}

/* A socket of this kind with which nothing was done; it is kept. -1: there is none, and all options count as changed. */
static int fresh_socket(const struct kind *kind)
{
    static struct {
        struct kind kind;
        int file;
    } kept[16];
    static size_t count;

    for (size_t i = 0; i < count; i++)
        if (!memcmp(&kept[i].kind, kind, sizeof(*kind)))
            return kept[i].file;
    if (count == sizeof(kept) / sizeof(*kept))
        return -1;
    kept[count].kind = *kind;
    kept[count].file = (int)syscall(SYS_socket, kind->domain, kind->type | SOCK_CLOEXEC, kind->protocol);
    return kept[count++].file;
}

static void tell(FILE *list, int file, int level, int option, const struct value *value)
{
    struct stat socket;

    if (fstat(file, &socket))
        return;
    fprintf(list, "%lu %d %d ", socket.st_ino, level, option);
    for (socklen_t i = 0; i < value->size; i++)
        fprintf(list, "%02x", value->bytes[i]);
    fputc('\n', list);
}

/* Whether there were any. */
static bool tell_changed(FILE *list, int file, int fresh, int level, const int *options)
{
    bool are_any = false;

    for (; *options; options++) {
        struct value value = option_of(file, level, *options), unchanged = option_of(fresh, level, *options);

        if (value.size == unchanged.size && !memcmp(value.bytes, unchanged.bytes, value.size))
            continue;
        tell(list, file, level, *options, &value);
        are_any = true;
    }
    return are_any;
}

/* In the order in which they are set again. */
static void tell_all(FILE *list, int file)
{
    struct value value;
    struct kind kind;
    socklen_t size = sizeof(int);
    int fresh;

    if (syscall(SYS_getsockopt, file, SOL_SOCKET, SO_DOMAIN, &kind.domain, &size) ||
        syscall(SYS_getsockopt, file, SOL_SOCKET, SO_TYPE, &kind.type, &size) ||
        syscall(SYS_getsockopt, file, SOL_SOCKET, SO_PROTOCOL, &kind.protocol, &size))
        return;
    fresh = fresh_socket(&kind);
    if ((kind.domain == AF_INET || kind.domain == AF_INET6) && tell_changed(list, file, fresh, IPPROTO_IP, of_ip)) {
        value = option_of(file, SOL_SOCKET, SO_PRIORITY); /* IP_TOS sets it, too */
        tell(list, file, SOL_SOCKET, SO_PRIORITY, &value);
    }
    if (kind.domain == AF_INET && kind.type != SOCK_STREAM) /* those of an accepted connection the kernel sets */
        tell_changed(list, file, fresh, IPPROTO_IP, of_ip_groups);
    if (kind.domain == AF_INET6 && kind.type != SOCK_STREAM)
        tell_changed(list, file, fresh, IPPROTO_IPV6, of_ipv6_groups);
    if (kind.domain == AF_INET6)
        tell_changed(list, file, fresh, IPPROTO_IPV6, of_ipv6);
    if (kind.protocol == IPPROTO_TCP && kind.type == SOCK_STREAM)
        tell_changed(list, file, fresh, IPPROTO_TCP, of_tcp);
    if (kind.protocol == IPPROTO_UDP && kind.type == SOCK_DGRAM)
        tell_changed(list, file, fresh, IPPROTO_UDP, of_udp);
    if (kind.domain == AF_PACKET)
        tell_changed(list, file, fresh, SOL_PACKET, of_packet);
    if (kind.domain == AF_NETLINK)
        tell_changed(list, file, fresh, SOL_NETLINK, of_netlink);
    tell_changed(list, file, fresh, SOL_SOCKET, of_any);
}

/* The first option of each socket that CRIU asks for when it dumps it is the size of its buffer. */
EXPORTED int getsockopt(int file, int level, int option, void *value, socklen_t *size)
{
    const char *path = level == SOL_SOCKET && option == SO_SNDBUF ? getenv("WHERRY_CRIU_OPTIONS") : NULL;
    FILE *list = path ? fopen(path, "ae") : NULL;

    if (path && !list)
        return -1; /* rather than lose some */
    if (list) {
        tell_all(list, file);
        if (fclose(list))
            return -1;
    }
    return (int)syscall(SYS_getsockopt, file, level, option, value, size);
}
