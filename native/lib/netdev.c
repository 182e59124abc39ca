/* See netdev.h. ioctl and not netlink: each is one call, and the names need no look-up of their own. */
#include "wherry/netdev.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
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
    QUEUE_FRAMES = 10000, /* frames that the kernel keeps for us while we are not scheduled */
    WATCH_BYTES = 4 << 20,
    WAIT_TRIES = 30000,   /* of 0.1 ms and more: the kernel needs much less than a millisecond */
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

/*
 * Brings the TAP up and waits until it may forward. The kernel notifies a bridge up to a second late of a carrier that
 * was there before the link was up; of a carrier that comes to a link that is up, at once.
 */
static int raise_link(int tap, struct ifreq *request)
{
    const struct timespec pause = {.tv_nsec = 100000};
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
    for (int tries = 0; tries < WAIT_TRIES; tries++) {
        error = request_by_name(SIOCGIFFLAGS, request);
        if (error || request->ifr_flags & IFF_RUNNING)
            return error;
        nanosleep(&pause, NULL);
    }
    return -ETIMEDOUT;
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
    request.ifr_qlen = QUEUE_FRAMES;
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
