/* See arp.h. */
#include "arp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/ether.h>
#include <netinet/if_ether.h>
#include <string.h>
#include <unistd.h>

struct arp_frame {
    struct ether_header ethernet;
    struct ether_arp arp;
};

static int say(int tap, const struct node *node, uint16_t operation, const uint8_t *to, const uint8_t *about)
{
    struct arp_frame frame = {
        .ethernet.ether_type = htons(ETHERTYPE_ARP),
        .arp.ea_hdr = {htons(ARPHRD_ETHER), htons(ETHERTYPE_IP), ETH_ALEN, sizeof(node->address), htons(operation)},
    };

    memcpy(frame.ethernet.ether_dhost, to, ETH_ALEN);
    memcpy(frame.ethernet.ether_shost, node->mac, ETH_ALEN);
    memcpy(frame.arp.arp_sha, node->mac, ETH_ALEN);
    memcpy(frame.arp.arp_spa, &node->address, sizeof(node->address));
    if (operation == ARPOP_REPLY)
        memcpy(frame.arp.arp_tha, to, ETH_ALEN);
    memcpy(frame.arp.arp_tpa, about, sizeof(node->address));
    return write(tap, &frame, sizeof(frame)) < 0 ? -errno : 0;
}

int arp_announce(int tap, const struct node *node)
{
    static const uint8_t everyone[ETH_ALEN] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

    return say(tap, node, ARPOP_REQUEST, everyone, (const uint8_t *)&node->address);
}

bool arp_answer(int tap, const struct node *node, const uint8_t *bytes, size_t length)
{
    struct arp_frame frame;

    if (length < sizeof(frame))
        return false;
    memcpy(&frame, bytes, sizeof(frame));
    if (frame.ethernet.ether_type != htons(ETHERTYPE_ARP) || frame.arp.arp_op != htons(ARPOP_REQUEST) ||
        memcmp(frame.arp.arp_tpa, &node->address, sizeof(node->address)) != 0 ||
        memcmp(frame.arp.arp_sha, node->mac, ETH_ALEN) == 0)
        return false;
    (void)say(tap, node, ARPOP_REPLY, frame.arp.arp_sha, frame.arp.arp_spa);
    return true;
}
