/* The location of every process: the leader keeps it and announces changes to the other hosts. */
#ifndef WHERRY_MANYCORE_BOARD_LOCATION_DIRECTORY_H
#define WHERRY_MANYCORE_BOARD_LOCATION_DIRECTORY_H

#include "migration/move_coordinator.h"

struct directory {
    struct net *net;
    struct parcel_router *router;
    struct move_proxy *proxy;
    struct move_coordinator *coordinator;
    struct shared_memory *shared;
    struct process_info told[PROCESS_MAX]; /* the leader: as announced to the others */
};

/* Handles PROCESS and ENDED, and the loss of a host. */
void directory_init(struct directory *directory, struct move_coordinator *coordinator);
/* The leader: announces a process's record to the other hosts, if it has changed. */
void directory_announce(struct directory *directory, uint32_t process);
/* Reports which processes here have ended and, as the leader, announces changed records to the others. */
void directory_serve(struct directory *directory);

#endif
