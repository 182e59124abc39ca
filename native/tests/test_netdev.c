/*
 * A TAP of wherry/netdev.h takes frames from the moment at which it has been made: none is lost before the kernel has
 * activated it. Needs root; works in a network namespace of its own.
 */
#include <linux/if_tun.h>
#include <net/ethernet.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "wherry/netdev.h"

enum { TRIES = 20, WAIT_MS = 1000 };

/* Sends a frame out of the TAP, as its bridge would, and reads until it comes. Returns whether it came. */
static bool passes(const char *name, int tap, uint8_t number)
{
    uint8_t sent[ETH_ZLEN] = {0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x88, 0xb5, number}, found[2048];
    struct pollfd wait = {.fd = tap, .events = POLLIN};
    int port = netdev_open_sender(name);
    ssize_t length;

    CHECK(port >= 0 && send(port, sent, sizeof sent, 0) == sizeof sent);
    close(port);
    while (poll(&wait, 1, WAIT_MS) > 0) {
        length = read(tap, found, sizeof found); /* the kernel's own, such as its IPv6 multicast reports, come too */
        if (length == sizeof sent && memcmp(sent, found, sizeof sent) == 0)
            return true;
    }
    return false;
}

int main(void)
{
    int lost = 0;

    CHECK(unshare(CLONE_NEWNET) == 0);
    for (int i = 0; i < TRIES; i++) {
        int tap = netdev_open_tap("tap", 0, 0);

        CHECK(tap >= 0);
        lost += !passes("tap", tap, (uint8_t)i);
        close(tap);
    }
    if (lost)
        fprintf(stderr, "%d of %d TAPs lost their first frame\n", lost, TRIES);
    CHECK(lost == 0);
    return 0;
}
