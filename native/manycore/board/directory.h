/* The location of every process, which the leader knows and tells the other hosts. */
#ifndef WHERRY_MANYCORE_BOARD_DIRECTORY_H
#define WHERRY_MANYCORE_BOARD_DIRECTORY_H

#include "transfer.h"

struct directory {
    struct net *net;
    struct relay *relay;
    struct mirror *mirror;
    struct transfer *transfer;
    struct window *window;
    struct process_info told[PROCESS_MAX]; /* the leader: what the others know */
};

/* Handles PROCESS and ENDED, and the loss of a host. */
void directory_init(struct directory *directory, struct transfer *transfer);
/* The leader: makes what is known of a process known to the other hosts, if it has changed. */
void directory_announce(struct directory *directory, uint32_t process);
/* Tells which processes here have ended and, as the leader, what the others do not know yet. */
void directory_serve(struct directory *directory);

#endif
