/* See netdev.h. By ioctl where there is one: one call each, and the names need no look-up of their own. */
#include "wherry/netdev.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    WATCH_BYTES = 4 << 20,
    WAIT_TRIES = 300000,  /* of 0.1 ms and more: the kernel needs about a millisecond */
    OPERATIONAL = 6,      /* IF_OPER_UP of linux/if.h, which does not go with net/if.h */
    ANSWER_MAX = 16384,   /* bytes of a netlink message about one link */
    STICKY = 1 << 6,      /* NTF_STICKY of linux/neighbour.h, Linux 4.20 */
};

static int request_by_name(unsigned long number, struct ifreq *request)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), error = 0;

    if (fd < 0)
        return -errno;
    if (ioctl(fd, number, request) < 0)
        error = -errno;
    close(fd);
    return error;
}

static int set_name(struct ifreq *request, const char *name)
{
    memset(request, 0, sizeof(*request));
    if (strlen(name) >= sizeof(request->ifr_name))
        return -ENAMETOOLONG;
    strcpy(request->ifr_name, name);
    return 0;
}

/* The operational state of the link (RFC 2863); negative errno. */
static int read_operstate(int netlink, int index)
{
    struct {
        struct nlmsghdr head;
        struct ifinfomsg link;
    } request = {
        .head = {.nlmsg_len = sizeof(request), .nlmsg_type = RTM_GETLINK, .nlmsg_flags = NLM_F_REQUEST},
        .link = {.ifi_index = index},
    };
    _Alignas(struct nlmsghdr) char answer[ANSWER_MAX];
    const struct nlmsghdr *head = (const struct nlmsghdr *)answer;
    const struct rtattr *attribute;
    ssize_t length;
    int left;

    if (send(netlink, &request, sizeof(request), 0) < 0)
        return -errno;
    do
        length = recv(netlink, answer, sizeof(answer), 0);
    while (length < 0 && errno == EINTR);
    if (length < 0)
        return -errno;
    if (!NLMSG_OK(head, (size_t)length) || head->nlmsg_type != RTM_NEWLINK)
        return -EPROTO;
    left = (int)(head->nlmsg_len - NLMSG_LENGTH(sizeof(struct ifinfomsg)));
    for (attribute = IFLA_RTA(NLMSG_DATA(head)); RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left))
        if (attribute->rta_type == IFLA_OPERSTATE)
            return *(const uint8_t *)RTA_DATA(attribute);
    return -EPROTO;
}

/*
 * Waits until the link is operational. IFF_RUNNING is no sign of that: it is set while the state is still unknown, and
 * a link whose carrier came after it was up drops every frame until the kernel has activated it, in a work of its own.
 */
static int await_operational(const char *name)
{
    const struct timespec pause = {.tv_nsec = 100000};
    int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE), index = (int)if_nametoindex(name);
    int state = -ETIMEDOUT;

    if (netlink < 0)
        return -errno;
    for (int tries = 0; tries < WAIT_TRIES; tries++) {
        state = read_operstate(netlink, index);
        if (state < 0 || state == OPERATIONAL)
            break;
        state = -ETIMEDOUT;
        nanosleep(&pause, NULL);
    }
    close(netlink);
    return state < 0 ? state : 0;
}

/*
 * Brings the TAP up and waits until it takes frames. The kernel notifies a bridge up to a second late of a carrier that
 * was there before the link was up; of a carrier that comes to a link that is up, at once.
 */
static int raise_link(int tap, struct ifreq *request)
{
    int carrier = 0, error;

    if (ioctl(tap, TUNSETCARRIER, &carrier) < 0)
        return -errno;
    request->ifr_flags = IFF_UP;
    error = request_by_name(SIOCSIFFLAGS, request);
    if (error)
        return error;
    carrier = 1;
    if (ioctl(tap, TUNSETCARRIER, &carrier) < 0)
        return -errno;
    return await_operational(request->ifr_name);
}

int netdev_open_tap(const char *name, short flags, unsigned mtu)
{
    struct ifreq request;
    int error = set_name(&request, name), fd;

    if (error)
        return error;
    fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    request.ifr_flags = (short)(IFF_TAP | IFF_NO_PI | flags);
    if (ioctl(fd, TUNSETIFF, &request) < 0) {
        error = -errno;
        goto close_tap;
    }
    request.ifr_qlen = NETDEV_QUEUE_FRAMES;
    error = request_by_name(SIOCSIFTXQLEN, &request);
    if (error)
        goto close_tap;
    if (mtu) {
        request.ifr_mtu = (int)mtu;
        error = request_by_name(SIOCSIFMTU, &request);
        if (error)
            goto close_tap;
    }
    error = raise_link(fd, &request);
    if (error)
        goto close_tap;
    return fd;
close_tap:
    close(fd);
    return error;
}

int netdev_open_sender(const char *name)
{
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(name)};
    int fd, error;

    if (!address.sll_ifindex)
        return -errno;
    fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0); /* protocol 0: sends only */
    if (fd < 0)
        return -errno;
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

int netdev_open_capture(void)
{
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, room = WATCH_BYTES, error;

    if (fd < 0)
        return -errno;
    if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof(on)) < 0) {
        error = -errno;
        close(fd);
        return error;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)); /* with less, fewer frames can be late */
    return fd;
}

int netdev_bind_capture(int fd, const char *name)
{
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(name)};

    address.sll_protocol = htons(ETH_P_ALL);
    if (!address.sll_ifindex || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return -errno;
    return 0;
}

int netdev_enter_namespace(const char *netns)
{
    int fd = open(netns, O_RDONLY | O_CLOEXEC), error = 0;

    if (fd < 0)
        return -errno;
    if (setns(fd, CLONE_NEWNET) < 0)
        error = -errno;
    close(fd);
    return error;
}

int netdev_set_bridge(const char *name, const char *bridge, bool member)
{
    struct ifreq request;
    int error = set_name(&request, bridge);

    if (error)
        return error;
    request.ifr_ifindex = (int)if_nametoindex(name);
    if (!request.ifr_ifindex)
        return -errno;
    error = request_by_name(member ? SIOCBRADDIF : SIOCBRDELIF, &request);
    if (error == (member ? -EBUSY : -EINVAL)) /* a port of this or another bridge already; of none */
        return 0;
    return error;
}

int netdev_set_mac(const char *name, const uint8_t mac[ETH_ALEN], bool kept)
{
    struct {
        struct nlmsghdr head;
        struct ndmsg entry;
        struct rtattr attribute;
        uint8_t mac[8];
    } request = {
        .head = {.nlmsg_len = sizeof(request) - sizeof(request.mac) + NLMSG_ALIGN(ETH_ALEN), .nlmsg_type = RTM_NEWNEIGH,
                 .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE},
        .entry = {.ndm_family = AF_BRIDGE, .ndm_ifindex = (int)if_nametoindex(name),
                  .ndm_state = kept ? NUD_NOARP : NUD_REACHABLE, .ndm_flags = (uint8_t)(NTF_MASTER | (kept ? STICKY : 0))},
        .attribute = {.rta_len = RTA_LENGTH(ETH_ALEN), .rta_type = NDA_LLADDR},
    };
    _Alignas(struct nlmsghdr) char answer[1024];
    const struct nlmsghdr *head = (const struct nlmsghdr *)answer;
    int fd, error = 0;
    ssize_t length;

    if (!request.entry.ndm_ifindex)
        return -errno;
    memcpy(request.mac, mac, ETH_ALEN);
    fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (fd < 0)
        return -errno;
    if (send(fd, &request, request.head.nlmsg_len, 0) < 0 || (length = recv(fd, answer, sizeof(answer), 0)) < 0)
        error = -errno;
    else if (!NLMSG_OK(head, (size_t)length) || head->nlmsg_type != NLMSG_ERROR)
        error = -EPROTO;
    else
        error = ((const struct nlmsgerr *)NLMSG_DATA(head))->error;
    close(fd);
    return error;
}
