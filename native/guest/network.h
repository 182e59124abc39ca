/* The machine's interface in its cluster's network: eth0, as in a container. */
#ifndef WHERRY_GUEST_NETWORK_H
#define WHERRY_GUEST_NETWORK_H

#include "guest.h"

/*
 * Finds the interface by its hardware address, names it eth0 and gives it address and MTU; adds a
 * permanent neighbour entry for every possible peer. Ends the machine when there is no such interface within 10 s.
 */
void network_up(const struct guest *guest);

#endif
