/*
 * Operations of wherry-hold and wherry-link on links of their namespace. All return a descriptor or 0, or a negative
 * errno.
 */
#ifndef WHERRY_NETDEV_H
#define WHERRY_NETDEV_H

#include <stdbool.h>
#include <stdint.h>

enum { NETDEV_QUEUE_FRAMES = 10000 }; /* frames that the kernel keeps for us while we are not scheduled */

/*
 * A TAP device of this name, up, which takes frames from now on; it is gone when the descriptor is closed. Reading does
 * not block. `flags` are those of TUNSETIFF besides the usual; `mtu` 0 leaves it as it is.
 */
int netdev_open_tap(const char *name, short flags, unsigned mtu);
/* A packet socket: a frame that is sent leaves through the link, as if the link's bridge had forwarded it. */
int netdev_open_sender(const char *name);
/*
 * A packet socket that is not bound yet and stamps the frames it will receive (SO_TIMESTAMPNS): the kernel's first
 * stamp costs a patch of its code, which does not belong into a freeze.
 */
int netdev_open_capture(void);
/* From now on the socket receives every frame that comes in by the link, before its bridge has it, or goes out by it. */
int netdev_bind_capture(int fd, const char *name);
/* Brings this process into the network namespace at this path. */
int netdev_enter_namespace(const char *netns);
/* Makes the link a port of the bridge, or takes it out. Its being so already is no error. */
int netdev_set_bridge(const char *name, const char *bridge, bool member);
/*
 * The link's bridge sends frames to this MAC there from now on: until a frame with the MAC comes from elsewhere, or, if
 * it is `kept`, also when it is.
 */
int netdev_set_mac(const char *name, const uint8_t mac[6], bool kept);

#endif
