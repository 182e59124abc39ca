/* See tap.h. */
#include "tap.h"

#include <errno.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "shape.h"
#include "wherry/netdev.h"

/* Newer than Debian 12's headers. */
#ifndef TUN_F_USO4
#define TUN_F_USO4 0x20
#define TUN_F_USO6 0x40
#endif
#ifndef TUN_F_UDP_TUNNEL_GSO
#define TUN_F_UDP_TUNNEL_GSO 0x080
#define TUN_F_UDP_TUNNEL_GSO_CSUM 0x100
#endif

enum {
    GSO_KIND = 0x1f, /* without the marks of a tunnel and of ECN */
    TCP_OFFSET = 12, /* a TCP header has its length in words in the upper four bits of this byte */
};

int tap_open(const char *netns, const char *name, unsigned mtu)
{
    int size = TAP_HEADER, error = netdev_enter_namespace(netns), fd;

    if (error)
        return error;
    fd = netdev_open_tap(name, IFF_VNET_HDR, mtu);
    if (fd < 0)
        return fd;
    if (ioctl(fd, TUNSETVNETHDRSZ, &size) < 0) {
        error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

int tap_set_whole(int tap, bool whole)
{
    static const unsigned segmented[] = {
        TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_USO4 | TUN_F_USO6 | TUN_F_UDP_TUNNEL_GSO | TUN_F_UDP_TUNNEL_GSO_CSUM,
        TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_USO4 | TUN_F_USO6, /* before 6.17 */
        TUN_F_TSO4 | TUN_F_TSO6,                           /* before 6.2 */
    };

    if (!whole)
        return ioctl(tap, TUNSETOFFLOAD, (unsigned long)TUN_F_CSUM) < 0 ? -errno : 0;
    for (size_t i = 0; i < sizeof(segmented) / sizeof(segmented[0]); i++)
        if (ioctl(tap, TUNSETOFFLOAD, (unsigned long)(TUN_F_CSUM | segmented[i])) == 0)
            return 0;
    return -errno;
}

uint64_t tap_wire_bytes(const uint8_t *frame, size_t length)
{
    struct virtio_net_hdr header;
    size_t transport, headers;
    int kind;

    memcpy(&header, frame, sizeof(header));
    length -= TAP_HEADER;
    if (header.gso_type == VIRTIO_NET_HDR_GSO_NONE)
        return length;
    transport = header.csum_start; /* of the inner packet when there is a tunnel */
    if (transport + sizeof(struct tcphdr) > length)
        return length;
    kind = header.gso_type & GSO_KIND;
    if (kind == VIRTIO_NET_HDR_GSO_TCPV4 || kind == VIRTIO_NET_HDR_GSO_TCPV6)
        headers = transport + (size_t)(frame[TAP_HEADER + transport + TCP_OFFSET] >> 4) * 4;
    else
        headers = transport + sizeof(struct udphdr);
    return shape_wire_bytes(length, headers, header.gso_size);
}
