/*
 * Parcels: messages, signals, bulk pieces and grants between processes of different hosts.
 *
 * Messages that tiles put into the endpoint of a process of another host are sent to it by way of the leader. Parcels
 * for a process here wait in `pending` until its endpoint has room; the leader keeps parcels for a process that is
 * moving between hosts in `held`. At most CREDIT parcels of a board are on their way to one process, so a slow reader
 * slows its senders down.
 */
#ifndef WHERRY_MANYCORE_BOARD_HOSTS_PARCEL_ROUTER_H
#define WHERRY_MANYCORE_BOARD_HOSTS_PARCEL_ROUTER_H

#include "network.h"

#define CREDIT 16   /* parcels on their way to one process from one board */
#define FLUSHED 128 /* with more on their way to one, no process moves from or to this board: a move sends more */

struct kept {
    struct kept *next;
    struct parcel parcel;
    uint8_t bytes[];
};

struct queue {
    struct kept *first, *last;
};

/* Effects of a move between hosts on the endpoint here. */
enum transit {
    TRANSIT_EXPECTED = 1, /* the process may come: nothing is drained from its endpoint in the ordinary course */
    TRANSIT_LOADED = 2,   /* its state has come: the endpoint is the process's own */
    TRANSIT_LEAVING = 4,  /* its state has been sent: nothing is delivered here as well */
};

/* Parcels that concern higher layers. */
struct router_events {
    void *context;
    /* Before a parcel of this process is routed: the READY of a process that just arrived must precede it. */
    void (*speaks)(void *context, uint32_t process);
    /* The leader: a message to the name server or, on port 0, a program's output. */
    void (*console)(void *context, uint32_t port, const struct mail *mail);
};

struct parcel_router {
    struct net *net;
    struct shared_memory *shared;
    struct router_events events;
    struct queue pending[PROCESS_MAX]; /* have come for a process of ours that has no room */
    struct queue held[PROCESS_MAX];    /* the leader: for a process that moves between hosts */
    uint32_t credit[PROCESS_MAX];      /* of ours on their way to a process */
    bool closed[PROCESS_MAX];          /* it comes or goes: our tiles' messages to it wait */
    bool holding[PROCESS_MAX];         /* the leader: parcels for it go to `held` */
    uint8_t transit[PROCESS_MAX];      /* enum transit */
};

/* Handles PARCEL, DELIVERED and GONE. */
void router_init(struct parcel_router *router, struct net *net, const struct router_events *events);
/* Sends messages of tiles, and delivers parcels that have come, as far as credit and room allow. */
void router_serve(struct parcel_router *router);
void router_mark(struct parcel_router *router, uint32_t process, enum transit transit, bool on);
/* Sends all messages of our tiles to processes of other hosts, whatever the credit. */
void router_flush(struct parcel_router *router);
/* Whether some process does not read the many messages that our tiles sent to it. */
bool router_is_behind(const struct parcel_router *router);
size_t router_count_bytes(const struct queue *queue);
void router_keep(struct queue *queue, const struct parcel *parcel, const uint8_t *bytes);
void router_forget(struct queue *queue);
/* The leader: the parcels held for the process go to the host that has it now. */
void router_release(struct parcel_router *router, uint32_t process, uint32_t host);
/* Sends other hosts the grants of the process here to their processes. */
void router_announce_grants(struct parcel_router *router, uint32_t process);
/* From now on our tiles' messages to the process wait, because older ones of other hosts are held by the leader. */
void router_close(struct parcel_router *router, uint32_t process);
/* Ends that: which senders still wait follows from the parcels that wait here for it. */
void router_open(struct parcel_router *router, uint32_t process);
/* Delivers the parcels that wait here for the process, as far as there is room. */
void router_fill(struct parcel_router *router, uint32_t process);
bool router_is_valid(const struct parcel *parcel);
/* A host is gone, and with it the acknowledgements of our parcels: the count begins at 0 again. */
void router_reset_credit(struct parcel_router *router);
/* The number belongs to another process from now on: parcels for the last one are dropped. */
void router_clear(struct parcel_router *router, uint32_t process);

#endif
