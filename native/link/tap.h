/*
 * One end of a link: a TAP in a site's namespace.
 *
 * The kernel hands over what it has not yet cut into segments, up to 64 KiB with one read, behind a header that says
 * how it is to be cut (VIRTIO 1.3, 5.1.6); written as it was read to the other end's TAP, it is cut where it leaves the
 * machine's virtual wires, if at all. So that TCP inside VXLAN is handed over like this too, the kernel must be 6.17 or
 * later; an older one cuts it before.
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
/* Whether reads may give what is not cut into segments yet. 0 or -errno. */
int tap_set_whole(int tap, bool whole);
/* Bytes on the wire of what was read, the header included in `length`. */
uint64_t tap_wire_bytes(const uint8_t *frame, size_t length);

#endif
