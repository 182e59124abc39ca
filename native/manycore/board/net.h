/*
 * Tiles of several hosts: one board a host, joined by TCP as a star. The board of host 0 is the *leader*: name server,
 * authority over which host has a process, and the middle of everything that goes between hosts.
 *
 * In the window of a host every process of every host has its location entry and its endpoint. The endpoint of a
 * process of another host is the *way out* to it: tiles put messages there as anywhere, the board takes them out again
 * and sends them as *parcels*. So a tile does not know who is where.
 *
 * Why nothing is lost, doubled or overtaken: a link delivers once and in order, and all go through the leader. Before
 * a process moves to another host the leader keeps what comes for it; the owner sends all that the process has said,
 * then the process with all that it has not yet read; the destination sends all that its tiles had said to it, then
 * that it is ready. That is the commit: the leader names the new owner, hands over what it kept, then says GO.
 *
 *   old owner              leader               destination
 *            <-- GIVE ---- keeps
 *   freezes, empties ways out
 *            --- STATE --->       --- STATE --->  checks; empties its way out to it; its tiles' puts wait
 *                          commits <-- READY ---
 *            <- COMMITTED-        --- parcels, GO -->  runs it
 *
 * A destination that refuses, or is gone before READY: ABORT to the old owner, which takes the process back. An owner
 * that is cut off keeps the frozen process until it hears; one that is cut off for good ends itself before the leader
 * reports its processes lost.
 */
#ifndef WHERRY_MANYCORE_NET_H
#define WHERRY_MANYCORE_NET_H

#include <netinet/in.h>

#include "../window.h"
#include "link.h"

#define HOST_MAX 8
#define LOST_MS 8000 /* a host that the leader has not reached for so long is gone, and its processes are lost */
#define ALONE_MS 5000 /* a board that has not reached the leader for so long ends: before it is taken for gone */
#define CREDIT 16    /* parcels on their way to one process from one board */
#define NO_SLOT 255

enum parcel_kind { PARCEL_MAIL, PARCEL_SIGNAL, PARCEL_PIECE, PARCEL_ALLOW };

struct parcel { /* as it is sent; its bytes follow */
    uint8_t kind, from, port, origin; /* port: of the mailbox, portal or sync; origin: the board that has the credit */
    uint32_t ticket, size;
    uint64_t amount;                  /* signals; bytes that are allowed */
};

struct kept {
    struct kept *next;
    struct parcel parcel;
    uint8_t bytes[];
};

struct queue {
    struct kept *first, *last;
};

/* A process's record as the leader tells it to the others, or an owner its end to the leader. */
struct news {
    uint32_t state, tile, status, moves, rank, ranks;
    uint8_t members[TILE_MAX];
    char why[REASON_SIZE], program[NAME_SIZE];
};

struct order {
    uint32_t to, mode; /* a tile; an errno or a status instead of the mode */
    char why[REASON_SIZE];
};

struct cost {
    uint32_t to, rounds, tracking;
    uint64_t bytes, before;
    int64_t prepare, freezing, copying, committing, first, all; /* nanoseconds, each of one host's clock */
};

/* What a host does: for who balances. */
struct report {
    uint32_t cpus, unused;
    uint64_t cpu[TILE_MAX]; /* nanoseconds of CPU that its tiles have had */
    uint32_t said[PROCESS_MAX][PROCESS_MAX];
};

struct board;
struct client;
struct given;
struct pollfd;

struct net {
    uint32_t host, hosts;        /* 0 of 1: there is only this host */
    uint32_t tiles[HOST_MAX];    /* of each host, in order of their numbers */
    struct link links[HOST_MAX]; /* the leader: one for each other host. Others: links[0] */
    bool gone[HOST_MAX];
    int listen_fd, gateway_fd;
    struct sockaddr_in leader;
    struct hello hello;
    struct queue pending[PROCESS_MAX]; /* have come for a process of ours that has no room */
    struct queue held[PROCESS_MAX];    /* the leader: for a process that is on its way between hosts */
    uint32_t credit[PROCESS_MAX];      /* of ours on their way to a process */
    bool moving[PROCESS_MAX];          /* the leader: GIVE has been said, and not yet GO or ABORT */
    uint8_t next_tile[PROCESS_MAX];
    bool mine[PROCESS_MAX];            /* it was here when we last looked */
    uint8_t *arriving[PROCESS_MAX];    /* a destination: the STATE until GO or ABORT */
    uint8_t arriving_slot[PROCESS_MAX];
    struct given *given[PROCESS_MAX];  /* an owner: what of the endpoint was sent with it, until COMMITTED or ABORT */
    struct report reports[HOST_MAX];   /* the leader: of each host, its own included */
    int64_t reported;                  /* when we last made ours */
    struct news told[PROCESS_MAX];     /* the leader: what the others know */
};

/* hosts.c: the boards of the other hosts */
int net_start(struct board *board, const char *layout, const char *address);
/* Waits until the boards of all hosts are there. */
int net_wait_for_all(struct board *board);
void net_learn_facts(struct location *location, const struct news *news);
/* Descriptors to poll; returns how many. net_serve() looks at all of them. */
int net_poll(struct board *board, struct pollfd *fds);
void net_serve(struct board *board, const struct pollfd *fds, int count);
void net_stop(struct board *board);
/* What our tiles do, now. */
void report_make(struct board *board, struct report *report);
/* Tells a client what all do, as one JSON line. */
void report_tell(struct board *board, struct client *client);
uint32_t net_host_of_tile(const struct board *board, uint32_t tile);
bool net_is_here(const struct board *board, uint32_t process);
/* To the leader, or, of the leader, to a host. */
void net_send(struct board *board, uint32_t host, enum frame_kind kind, uint32_t process, const void *payload,
              size_t size);
/* Makes what is known of a process known to the other hosts. */
void net_announce(struct board *board, uint32_t process);
void net_handle(struct board *board, uint32_t from, const struct frame_head *head, const uint8_t *payload);

/* relay.c: parcels */
void relay_serve(struct board *board);
/* Takes out all that our tiles have said to processes of other hosts, whatever the credit. */
void relay_flush(struct board *board);
void relay_route(struct board *board, uint32_t process, const struct parcel *parcel, const uint8_t *bytes);
void relay_keep(struct queue *queue, const struct parcel *parcel, const uint8_t *bytes);
void relay_forget(struct queue *queue);
void relay_deliver(struct board *board, uint32_t process, const struct parcel *parcel, const uint8_t *bytes);
void relay_announce_leave(struct board *board, uint32_t process);
/* The process is here now: what waited is for it. */
void relay_open(struct board *board, uint32_t process);
bool relay_is_valid(const struct parcel *parcel);
void relay_delivered(struct board *board, uint32_t process, uint32_t origin);
/* The process is another one from now on: nothing that was for the last is for it. */
void relay_clear(struct board *board, uint32_t process);

/* transfer.c: processes between hosts */
/* The leader: a move that concerns another host, or a start there. */
void transfer_ask(struct board *board, struct move *move);
void transfer_start(struct board *board, uint32_t process, uint32_t tile, const struct uarea *area,
                    const uint8_t *image);
/* A move from here to another host was called off here. */
void transfer_give_ended(struct board *board, const struct move *move);
/* Watches the moves from here to other hosts. */
void transfer_serve(struct board *board);
void transfer_handle(struct board *board, uint32_t from, const struct frame_head *head, const uint8_t *payload);
/* The leader: a process on its way has lost its owner, or a host is gone. */
void transfer_owner_lost(struct board *board, uint32_t process);
void transfer_host_gone(struct board *board, uint32_t host);

#endif
