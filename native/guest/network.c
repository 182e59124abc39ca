/*
 * See network.h. Addresses and hardware addresses follow from a node's number (wherry.model.network): node N of a
 * cluster has last octet N + 1 and last MAC byte N, the head has 254 in both. No ARP question can so be lost in a move.
 */
#include "network.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "util.h"
#include "wherry/process.h"

#define NAME "eth0"

enum {
    FIND_MS = 60000, /* a driver may need a while to find its device */
    CARRIER_MS = 5000, /* some adapters take seconds; a frame that is sent before is lost */
    PAUSE_US = 5000,
    DISCARD = 9, /* the port that nobody listens at: RFC 863 */
    NODES = 250,
    HEAD = 254,
};

/* The name of the interface with this hardware address. */
static bool find_interface(const uint8_t *mac, char *name)
{
    DIR *interfaces = opendir("/sys/class/net");
    struct dirent *entry;
    bool found = false;

    while (interfaces && !found && (entry = readdir(interfaces))) {
        char path[320], wanted[18], *address;

        snprintf(path, sizeof path, "/sys/class/net/%s/address", entry->d_name);
        snprintf(wanted, sizeof wanted, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4],
                 mac[5]);
        address = guest_read(path);
        found = address && strncasecmp(address, wanted, sizeof wanted - 1) == 0;
        if (found)
            snprintf(name, IFNAMSIZ, "%.15s", entry->d_name);
        free(address);
    }
    if (interfaces)
        closedir(interfaces);
    return found;
}

static void set(int fd, unsigned long request, struct ifreq *change, const char *what)
{
    if (ioctl(fd, request, change) < 0)
        guest_fail(what, change->ifr_name, errno);
}

static void set_address(int fd, unsigned long request, const char *name, uint32_t address, const char *what)
{
    struct ifreq change = {0};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = address};

    snprintf(change.ifr_name, IFNAMSIZ, "%s", name);
    memcpy(&change.ifr_addr, &in, sizeof in);
    set(fd, request, &change, what);
}

static void set_up(int fd, const char *name, bool up)
{
    struct ifreq change = {0};

    snprintf(change.ifr_name, IFNAMSIZ, "%s", name);
    set(fd, SIOCGIFFLAGS, &change, "read the flags of");
    change.ifr_flags = (short)(up ? change.ifr_flags | IFF_UP : change.ifr_flags & ~IFF_UP);
    set(fd, SIOCSIFFLAGS, &change, up ? "bring up" : "bring down");
}

/*
 * Turns off the device's work for TCP: checksums both ways, and the features that need them. A device without one of
 * them refuses; a device that still sends partial frames is unfit for this node.
 */
static void stop_offload(int fd)
{
    static const uint32_t commands[] = {ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO, ETHTOOL_STXCSUM, ETHTOOL_SRXCSUM};
    static const uint32_t sending[] = {ETHTOOL_GTXCSUM, ETHTOOL_GTSO};
    struct ifreq change = {.ifr_name = NAME};

    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        struct ethtool_value value = {.cmd = commands[i], .data = 0};

        change.ifr_data = (char *)&value;
        if (ioctl(fd, SIOCETHTOOL, &change) < 0 && errno != EOPNOTSUPP)
            guest_fail("switch off the offload of", NAME, errno);
    }
    for (size_t i = 0; i < sizeof sending / sizeof *sending; i++) {
        struct ethtool_value value = {.cmd = sending[i]};

        change.ifr_data = (char *)&value;
        if (ioctl(fd, SIOCETHTOOL, &change) == 0 && value.data)
            guest_fail("switch off the offload of", NAME, EBUSY);
    }
}

static void set_neighbour(int fd, const struct guest *guest, int number)
{
    uint32_t last = number == HEAD ? HEAD : (uint32_t)number + 1;
    uint32_t own = ntohl(guest->address.s_addr);
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl((own & ~0xffu) | last)};
    struct arpreq entry = {.arp_flags = ATF_PERM | ATF_COM, .arp_dev = NAME, .arp_ha = {.sa_family = ARPHRD_ETHER}};

    if (in.sin_addr.s_addr == guest->address.s_addr)
        return;
    memcpy(&entry.arp_pa, &in, sizeof in);
    memcpy(entry.arp_ha.sa_data, guest->mac, GUEST_MAC);
    entry.arp_ha.sa_data[GUEST_MAC - 1] = (char)number;
    if (ioctl(fd, SIOCSARP, &entry) < 0)
        guest_fail("set the neighbours of", NAME, errno);
}

static bool has_carrier(void)
{
    char *text = guest_read("/sys/class/net/" NAME "/carrier");
    bool has = text && text[0] == '1';

    free(text);
    return has;
}

/*
 * Bridges on the way may know the node's hardware address from another host, where it was started before, and learn
 * from any frame where it is now. A node asks for no address, and so would be silent until somebody reaches it.
 */
static void announce(int fd, const struct guest *guest)
{
    uint32_t host_bits = htonl(~(~0u << (32 - guest->prefix)));
    struct sockaddr_in everyone = {
        .sin_family = AF_INET, .sin_port = htons(DISCARD), .sin_addr.s_addr = guest->address.s_addr | host_bits};
    int64_t end = process_now_ms() + CARRIER_MS;
    int yes = 1;

    while (!has_carrier() && process_now_ms() < end)
        usleep(PAUSE_US);
    if (setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &yes, sizeof yes) < 0 ||
        sendto(fd, "", 0, 0, (struct sockaddr *)&everyone, sizeof everyone) < 0)
        fprintf(stderr, "wherry-guest: cannot announce %s: %s\n", guest->name, strerror(errno));
}

void network_up(const struct guest *guest)
{
    struct ifreq change = {0};
    int64_t end = process_now_ms() + FIND_MS;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        guest_fail("make", "a socket", errno);
    guest_write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"); /* clusters have none; without it there is no file */
    set_up(fd, "lo", true);
    while (!find_interface(guest->mac, change.ifr_name)) {
        if (process_now_ms() > end)
            guest_fail("find", "the network interface that wherry.mac names", ENODEV);
        usleep(PAUSE_US);
    }
    if (strcmp(change.ifr_name, NAME) != 0) {
        set_up(fd, change.ifr_name, false); /* the system of a disk may have brought it up; so it cannot be renamed */
        snprintf(change.ifr_newname, IFNAMSIZ, "%s", NAME);
        set(fd, SIOCSIFNAME, &change, "name " NAME);
        snprintf(change.ifr_name, IFNAMSIZ, "%s", NAME);
    }
    if (!guest->checksum_offload)
        stop_offload(fd);
    change.ifr_mtu = guest->mtu;
    set(fd, SIOCSIFMTU, &change, "set the MTU of");
    set_address(fd, SIOCSIFADDR, NAME, guest->address.s_addr, "set the address of");
    set_address(fd, SIOCSIFNETMASK, NAME, htonl(~0u << (32 - guest->prefix)), "set the mask of");
    set_up(fd, NAME, true);
    if (guest->prefix == 24)
        for (int number = 0; number <= HEAD; number = number == NODES - 1 ? HEAD : number + 1)
            set_neighbour(fd, guest, number);
    announce(fd, guest);
    close(fd);
}
