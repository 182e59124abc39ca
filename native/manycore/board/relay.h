/*
 * Parcels: messages, signals, bulk pieces and grants between processes of different hosts.
 *
 * What tiles put into the endpoint of a process of another host is sent to it by way of the leader. What comes for a
 * process here waits in `pending` until its endpoint has room; the leader keeps in `held` what comes for a process
 * that is moving between hosts. At most CREDIT parcels of a board are on their way to one process, so a slow reader
 * slows its senders down.
 */
#ifndef WHERRY_MANYCORE_BOARD_RELAY_H
#define WHERRY_MANYCORE_BOARD_RELAY_H

#include "net.h"

#define CREDIT 16   /* parcels on their way to one process from one board */
#define FLUSHED 128 /* with more on their way to one, no process moves from or to this board: that sends more */

struct kept {
    struct kept *next;
    struct parcel parcel;
    uint8_t bytes[];
};

struct queue {
    struct kept *first, *last;
};

/* What a move between hosts means for the endpoint here. */
enum transit {
    TRANSIT_EXPECTED = 1, /* the process may come: nothing is drained from its endpoint in the ordinary course */
    TRANSIT_LOADED = 2,   /* its state has come: the endpoint is the process's own */
    TRANSIT_LEAVING = 4,  /* its state has been sent: nothing is delivered here as well */
};

/* What parcels mean to higher layers. */
struct relay_events {
    void *context;
    /* Before a parcel of this process is routed: if it has just come here, the leader must hear that first. */
    void (*speaks)(void *context, uint32_t process);
    /* The leader: a message to the name server or, on port 0, a program's output. */
    void (*console)(void *context, uint32_t port, const struct mail *mail);
};

struct relay {
    struct net *net;
    struct window *window;
    struct relay_events events;
    struct queue pending[PROCESS_MAX]; /* have come for a process of ours that has no room */
    struct queue held[PROCESS_MAX];    /* the leader: for a process that moves between hosts */
    uint32_t credit[PROCESS_MAX];      /* of ours on their way to a process */
    bool closed[PROCESS_MAX];          /* it comes or goes: our tiles' messages to it wait */
    bool holding[PROCESS_MAX];         /* the leader: what comes for it goes to `held` */
    uint8_t transit[PROCESS_MAX];      /* enum transit */
};

/* Handles PARCEL, DELIVERED and GONE. */
void relay_init(struct relay *relay, struct net *net, const struct relay_events *events);
/* Sends what tiles have written, and delivers what has come, as far as credit and room allow. */
void relay_serve(struct relay *relay);
void relay_mark(struct relay *relay, uint32_t process, enum transit transit, bool on);
/* Sends all that our tiles have said to processes of other hosts, whatever the credit. */
void relay_flush(struct relay *relay);
/* Whether a process to which our tiles have said much does not read it. */
bool relay_is_behind(const struct relay *relay);
size_t relay_count_bytes(const struct queue *queue);
void relay_keep(struct queue *queue, const struct parcel *parcel, const uint8_t *bytes);
void relay_forget(struct queue *queue);
/* The leader: what was held for the process goes to the host that has it now. */
void relay_release(struct relay *relay, uint32_t process, uint32_t host);
/* Tells other hosts which of their processes the process here allows to send. */
void relay_announce_grants(struct relay *relay, uint32_t process);
/* From now on our tiles' messages to the process wait, because older ones of other hosts are held by the leader. */
void relay_close(struct relay *relay, uint32_t process);
/* Ends that: who may say something to it follows from what waits here for it. */
void relay_open(struct relay *relay, uint32_t process);
/* Delivers what waits here for the process, as far as there is room. */
void relay_fill(struct relay *relay, uint32_t process);
bool relay_is_valid(const struct parcel *parcel);
/* A host is gone, and with it the acknowledgements of parcels of ours: the count begins anew. */
void relay_reset_credit(struct relay *relay);
/* The number belongs to another process from now on: nothing that was for the last one is for it. */
void relay_clear(struct relay *relay, uint32_t process);

#endif
