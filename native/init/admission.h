/*
 * Admission of clients that have not yet proved that they have the key.
 *
 * Any host that reaches the port can connect and send nothing. So unproved clients have places of their own, of which
 * one source address gets a part; when they are taken, the next client pushes out the oldest unproved one (of its
 * address, or of all). Invariant: a client that has proved that it has the key is never pushed out, and unproved ones
 * never keep it from connecting. An honest handshake is over in two round trips, long before it is the oldest.
 */
#ifndef WHERRY_INIT_ADMISSION_H
#define WHERRY_INIT_ADMISSION_H

#include <netinet/in.h>

enum {
    ADMISSION_MAX = 96,         /* unproved clients */
    ADMISSION_SOURCE_MAX = 32,  /* of one address: a launcher's agents start at once */
};

/* Makes a place for one more client from `source`. Not while sessions are being stepped through. */
void admission_make_room(struct in_addr source);

#endif
