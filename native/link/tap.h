/*
 * One end of a link: a TAP in a site's namespace.
 *
 * The kernel hands over frames that are not yet cut into segments, up to 64 KiB with one read, behind a header with the
 * way to cut them (VIRTIO 1.3, 5.1.6); written as they were read to the other end's TAP, they are cut where they leave
 * the machine's virtual wires, if at all. So that TCP inside VXLAN is handed over like this too, the kernel must be
 * 6.17 or later; an older one cuts it before.
 */
#ifndef WHERRY_LINK_TAP_H
#define WHERRY_LINK_TAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TAP_HEADER = 24,                               /* bytes of the header: virtio_net_hdr_v1_hash_tunnel */
    TAP_FRAME_MAX = TAP_HEADER + (64 << 10) + 256, /* a packet of 64 KiB and its outer headers */
};

/* Enters the namespace and makes a TAP there, which is up: a descriptor that does not block, or -errno. */
int tap_open(const char *netns, const char *name, unsigned mtu);
/* Whether reads may give frames that are not cut into segments yet. 0 or -errno. */
int tap_set_whole(int tap, bool whole);
/* Bytes on the wire of a read frame, the header included in `length`. */
uint64_t tap_wire_bytes(const uint8_t *frame, size_t length);

#endif
