/* The load of tiles, for balancing: CPU time of each, and messages between processes, summed over the hosts. */
#ifndef WHERRY_MANYCORE_BOARD_LOAD_REPORT_H
#define WHERRY_MANYCORE_BOARD_LOAD_REPORT_H

#include "hosts/network.h"

#define REPORT_ROOM (64 * 1024) /* bytes of text: every pair of processes in 24 */

struct reports {
    struct net *net;
    struct report reports[HOST_MAX]; /* the leader: of each host, its own included */
    int64_t reported;                /* when we last sent ours */
};

/* Handles REPORT. */
void report_init(struct reports *reports, struct net *net);
/* Sends the leader the load of our tiles, every half second. */
void report_serve(struct reports *reports);
/* The leader: the load of all hosts, now, as one line of JSON. */
void report_format(struct reports *reports, char text[REPORT_ROOM]);

#endif
