/* How the boards of the hosts connect: addresses, sockets, and the handshake of authentication.h. */
#ifndef WHERRY_MANYCORE_BOARD_HOSTS_JOIN_H
#define WHERRY_MANYCORE_BOARD_HOSTS_JOIN_H

#include "network.h"

#define HELLO_MS 1000 /* for each step of the handshake */

/*
 * Reads --leader, and the secret from the environment, which the tiles inherit, so it is removed there. 0 or negative
 * errno.
 */
int join_configure(struct net *net, const char *leader);
/* The leader. Returns 0 or negative errno. */
int join_listen(struct net *net);
/* Accepts a connection without waiting for its greeting; when too many wait, the oldest is closed. */
void join_accept(struct net *net);
/* Reads greetings that have come; a connection that has proved which host it is becomes that host's channel. */
void join_serve(struct net *net);
/* Connects to the leader. Returns 0 or negative errno. */
int join_leader(struct net *net);

#endif
