/* The other hosts of the cluster: connects to them, detects their failure, reads and writes their channels. */
#ifndef WHERRY_MANYCORE_BOARD_HOSTS_MEMBERSHIP_H
#define WHERRY_MANYCORE_BOARD_HOSTS_MEMBERSHIP_H

#include <poll.h>

#include "network.h"

#define LOST_MS 45000  /* the leader declares a host dead after so long, and its processes for lost */
#define ALONE_MS 30000 /* a board that the leader does not acknowledge for so long ends, before LOST_MS; a busy host may
                          be stopped for twenty seconds */
#define SILENT_MS 2000 /* a connection on which nothing comes for so long is made anew; reports come more often */

/* `layout` NULL: there is only this host. Returns 0 or negative errno. */
int membership_start(struct net *net, uint32_t host, const char *layout, const char *leader);
/* Waits until the boards of all hosts are connected. Returns 0 or negative errno. */
int membership_wait_for_all(struct net *net);
/* Fills in the descriptors to poll and returns how many; membership_serve() gets the same ones. */
int membership_poll(struct net *net, struct pollfd *fds);
/* Reads and writes ready descriptors, and looks after silent channels and hosts. */
void membership_serve(struct net *net, const struct pollfd *fds, int count);
void membership_stop(struct net *net);

#endif
