/* arp: announcements and answers of a hold in the name of the node whose frames it keeps. */
#ifndef WHERRY_HOLD_ARP_H
#define WHERRY_HOLD_ARP_H

#include <net/ethernet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct node {
    uint8_t mac[ETH_ALEN];
    struct in_addr address;
};

/* Written into the TAP, so that every bridge on its way learns that the MAC is here: gratuitous ARP (RFC 5227), a request
 * for the own address, to everyone. 0, or a negative errno. */
int arp_announce(int tap, const struct node *node);
/* Answers a frame that asks for the node's address; false: it does not. A peer that gets no answer for 3 s gives the node
 * up and drops its frames for it, so a long hold must answer. */
bool arp_answer(int tap, const struct node *node, const uint8_t *bytes, size_t length);

#endif
