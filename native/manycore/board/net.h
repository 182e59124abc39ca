/*
 * Tiles of several hosts: one board a host, joined by TCP as a star. The board of host 0 is the *leader*: name server,
 * authority over which host has a process, and the middle of everything that goes between hosts.
 *
 * In the window of a host every process of every host has its location entry and its endpoint. The endpoint of a
 * process of another host is the *way out* to it: tiles put messages there as anywhere, the board takes them out again
 * and sends them as *parcels*. So a tile does not know who is where.
 *
 * A move between hosts: the two tiles do what they do on one host (moving.h), each with its board in the place of the
 * other side. The boards mirror the move's record: what one side has written there, and the pages.
 *
 *   source's board         leader               destination's board
 *            <-- GIVE -----
 *            --- OFFER --->  ------------------->  a slot; its tile maps and touches it
 *            <-- WANT ------------------------------  pages (`precopy`)            } as often as it gets less
 *            --- PAGES ---------------------------->                               }
 *            <-- WANT -----  keeps what comes <-----  RESERVED: freeze
 *   freezes, empties ways out
 *            --- STATE ---------------------------->  checks; empties its way out to it; its tiles' puts wait
 *                                                     the tile checks, commits, runs it
 *                            commits <---- READY ---
 *            <- COMMITTED-   ---- parcels, GO ----->  what was kept for it is there; puts go on
 *            <-- RUNS ------------------------------
 *
 * Why nothing is lost, doubled or overtaken: a link delivers once and in order, and all go through the leader. From the
 * order to freeze on, the leader keeps what comes for the process; the owner sends all that the process has said, then
 * the process with all that it has not yet read; the destination sends all that its tiles had said to it, then READY.
 * That is the commit: the leader names the new owner, hands over what it kept, then says GO. Meanwhile what tiles of the
 * two hosts themselves say to it waits: it must not overtake what the leader keeps. A move that is called off ends with
 * GO to the old owner.
 *
 * The destination runs the process a message earlier than the leader knows of it. That is no second owner: the source
 * has it frozen, and thaws it only when the leader calls the move off, which it does for a destination that refuses, and
 * for one whose host is gone (it has ended itself by then). Nothing that the process does there leaves that host before
 * READY, which goes first. If the leader has meanwhile reported the process lost, with its source, ABORT ends it there.
 *
 * An owner that is cut off keeps the frozen process until it hears; one that is cut off for good ends itself before the
 * leader reports its processes lost. Every frame of a move carries the leader's serial number of it; others are old.
 */
#ifndef WHERRY_MANYCORE_NET_H
#define WHERRY_MANYCORE_NET_H

#include <netinet/in.h>

#include "../window.h"
#include "clock.h"
#include "hello.h"
#include "link.h"

#define HOST_MAX 8
#define GUEST_MAX 8 /* connections whose greeting has not come yet */
#define LOST_MS 8000 /* a host that the leader has not heard for so long is gone, and its processes are lost */
#define ALONE_MS 5000 /* when the leader has acknowledged nothing of so late, a board and its tiles end: before they are taken for gone */
#define SILENT_MS 2000 /* a connection on which nothing comes for so long is made anew; reports come more often */
#define CREDIT 16    /* parcels on their way to one process from one board */
#define FLUSHED 128  /* more than that on their way to one: no process moves from or to this board, as that sends still more */
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
    uint32_t serial;   /* of the move that it concerns; here and below the first word */
    uint32_t to, mode; /* a tile; an errno or a status instead of the mode */
    char why[REASON_SIZE];
};

struct offer {
    uint32_t serial, from, to, mode;
    uint32_t text_end, rodata_end; /* as the destination maps it before the User Area is there */
};

/* What the destination has written in the move's record. */
struct want { uint32_t serial, step, wanted, allow, taken; };

struct pages { /* they follow, in order */
    uint32_t serial, scanned, tracking, unused;
    uint64_t written[WRITTEN_WORDS];
};

struct piece { uint32_t serial, sent; }; /* 4 KiB follow */

struct runs { /* durations of the destination's clock, in nanoseconds from when the STATE had come */
    uint32_t serial, rounds;
    uint64_t bytes, before;
    int64_t copied, committed, first, all, told; /* told: until this was sent */
    int64_t come;                                /* when the STATE had come, by the clock */
    struct clock clock;
};

struct cost {
    uint32_t serial, to, rounds, tracking;
    uint32_t at_most, unused;
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
struct given;   /* state.h */
struct arrival; /* state.h */
struct pollfd;

/* The leader: what it knows of a process's last move between hosts. */
enum passage_step {
    PASSAGE_NONE,
    PASSAGE_ASKED, /* GIVE has been said */
    PASSAGE_HELD,  /* the order to freeze has gone to the owner; what comes is kept, and what its tiles say waits */
    PASSAGE_GONE,  /* READY has come */
    PASSAGE_TOLD,  /* the source has been told since when it runs there, and tells the cost next */
};

struct passage {
    uint32_t serial;
    uint8_t step, source, to; /* enum passage_step, host, tile */
};

/* What our board has told the other side of a move's record, and when that last got on. */
struct mirror {
    uint32_t step, wanted, scanned, allow, sent, taken;
    int64_t since;
};

struct guest {
    int64_t since; /* when it connected; 0: there is none */
    int fd;
    size_t count;  /* bytes of its greeting */
    uint8_t nonce[NONCE_SIZE];
    struct greeting greeting;
};

struct net {
    uint32_t host, hosts;        /* 0 of 1: there is only this host */
    uint32_t tiles[HOST_MAX];    /* of each host, in order of their numbers */
    struct link links[HOST_MAX]; /* the leader: one for each other host. Others: links[0] */
    bool gone[HOST_MAX];
    bool alone;                  /* without the leader: nothing here may go on */
    struct guest guests[GUEST_MAX];
    int listen_fd;
    struct sockaddr_in leader;
    struct hello hello;
    struct secret secret;
    struct clock clock;
    struct queue pending[PROCESS_MAX]; /* have come for a process of ours that has no room */
    struct queue held[PROCESS_MAX];    /* the leader: for a process that is on its way between hosts */
    uint32_t credit[PROCESS_MAX];      /* of ours on their way to a process */
    struct passage passages[PROCESS_MAX]; /* the leader */
    struct mirror mirrors[TILE_MAX];   /* of the moves between a tile here and this one, or to this one from elsewhere */
    bool closed[PROCESS_MAX];          /* it comes or goes: our tiles' messages to it wait */
    bool mine[PROCESS_MAX];            /* it was here when we last looked */
    struct arrival *arriving[PROCESS_MAX]; /* a destination: from OFFER to GO or ABORT */
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
/* Whether somebody to whom our tiles have said much does not read it. */
bool relay_is_behind(const struct board *board);
size_t relay_count_bytes(const struct queue *queue);
void relay_route(struct board *board, uint32_t process, const struct parcel *parcel, const uint8_t *bytes);
void relay_keep(struct queue *queue, const struct parcel *parcel, const uint8_t *bytes);
void relay_forget(struct queue *queue);
void relay_deliver(struct board *board, uint32_t process, const struct parcel *parcel, const uint8_t *bytes);
void relay_announce_leave(struct board *board, uint32_t process);
/* From now on our tiles' messages to the process wait, because others' that were before them are kept by the leader. */
void relay_close(struct board *board, uint32_t process);
/* No more of that: who may say something to it follows from what waits here for it. */
void relay_open(struct board *board, uint32_t process);
/* What waits here for the process goes to it, as far as there is room. */
void relay_fill(struct board *board, uint32_t process);
bool relay_is_valid(const struct parcel *parcel);
void relay_delivered(struct board *board, uint32_t process, uint32_t origin);
/* A host is gone, and with it what it would have said of parcels of ours: the count begins anew. */
void relay_forgive(struct board *board);
/* The process is another one from now on: nothing that was for the last is for it. */
void relay_clear(struct board *board, uint32_t process);

/* transfer.c: the leader's part in moves between hosts */
/* A move that concerns another host, or a start there. */
void transfer_ask(struct board *board, struct move *move);
void transfer_start(struct board *board, uint32_t process, uint32_t tile, const struct uarea *area,
                    const uint8_t *image);
/* A move between this host and another was called off here. */
void transfer_ended(struct board *board, const struct move *move);
/* A process runs at the leader's own host, and who moved it there has been told: so it ends here if he is gone. */
void transfer_has_come(struct board *board, uint32_t process);
void transfer_handle(struct board *board, uint32_t from, const struct frame_head *head, const uint8_t *payload);
/* Whether the process is between GIVE and READY, or ABORT. */
bool transfer_is_moving(const struct board *board, uint32_t process);
/* A process on its way has lost its owner, or a host is gone. */
void transfer_owner_lost(struct board *board, uint32_t process);
void transfer_host_gone(struct board *board, uint32_t host);

/* mirror.c: the other side of a move, which another host is */
void mirror_give(struct board *board, uint32_t process, const struct order *order);
void mirror_offer(struct board *board, uint32_t process, const struct offer *offer);
void mirror_want(struct board *board, uint32_t process, const struct want *want);
void mirror_pages(struct board *board, uint32_t process, const uint8_t *payload, size_t size);
void mirror_piece(struct board *board, uint32_t process, const uint8_t *payload, size_t size);
void mirror_state(struct board *board, uint32_t process, const uint8_t *payload, size_t size);
void mirror_start(struct board *board, uint32_t process, const uint8_t *payload, size_t size);
void mirror_go(struct board *board, uint32_t process);
void mirror_committed(struct board *board, uint32_t process);
void mirror_runs(struct board *board, uint32_t process, const struct runs *runs);
void mirror_abort(struct board *board, uint32_t process, const struct order *order);
void mirror_refuse(struct board *board, uint32_t process, uint32_t serial, uint32_t to, const char *why);
/* Tells the other side what our tiles have written. */
void mirror_serve(struct board *board);
/* Whether an arrival runs here already; the leader is told now, if it has not been: before anything that it says. */
bool mirror_has_come(struct board *board, uint32_t process);
/* A move that comes from another host: returns whether its record is looked after. If it came to nothing, moves_serve() tells. */
bool mirror_finish(struct board *board, struct move *move, bool aborted);

#endif
