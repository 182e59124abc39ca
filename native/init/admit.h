/*
 * Which clients that have not yet proved that they know the key may stay.
 *
 * Anybody who reaches the port can connect and say nothing. So unproved clients have places of their own, of which one
 * source address gets a part; who comes when they are taken pushes out the oldest unproved client (of the address, or of
 * all). Invariant: a client that has proved itself is never pushed out, and never kept from connecting by those who
 * have not. An honest handshake is over in two round trips, long before it is the oldest.
 */
#ifndef WHERRY_INIT_ADMIT_H
#define WHERRY_INIT_ADMIT_H

#include <netinet/in.h>

enum {
    ADMIT_MAX = 96,         /* unproved clients */
    ADMIT_SOURCE_MAX = 32,  /* of one address: a launcher's agents start at once */
};

/* Makes a place for one more client from `source`. Not while sessions are being stepped through. */
void admit_make_room(struct in_addr source);

#endif
