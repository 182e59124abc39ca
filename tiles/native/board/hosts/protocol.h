/*
 * Tiles of several hosts: one board a host, joined by TCP as a star. The board of host 0 is the *leader*: name server,
 * authority over which host has a process, and the hub of all traffic between hosts.
 *
 * In the shared memory of a host every process of every host has its location entry and its endpoint. For a process of
 * another host the endpoint is an outgoing queue: tiles put messages there as anywhere, and the board takes them out
 * and sends them as *parcels*. So a tile need not know which host has a process.
 *
 * A move between hosts: the two tiles act as on one host (move_engine.h), and each board acts for the other side. The
 * boards copy the move's record to each other: the fields that one side has written there, and the pages.
 *
 *   source's board         leader               destination's board
 *           <-- MIGRATE --
 *            --- OFFER --->  ------------------->  a slot; its tile maps and touches it
 *            <-- WANT ------------------------------  pages (`precopy`)            } repeated while each round
 *            --- PAGES ---------------------------->                               } finds fewer dirty pages
 *            <-- WANT -----  holds parcels <------  RESERVED: freeze
 *   freezes, flushes its outgoing queues
 *            --- STATE ---------------------------->  checks; flushes its queue to the process; its tiles' sends wait
 *                                                     the tile checks, commits, runs it
 *                            commits <---- READY ---
 *            <- COMMITTED-   ---- parcels, GO ----->  the held parcels are there; sends continue
 *            <-- RUNS ------------------------------
 *
 * Why no parcel is lost, doubled or reordered: a channel delivers once and in order, and all go through the leader.
 * From the order to freeze on, the leader holds the parcels for the process; the owner sends all messages of the
 * process, then the process with all that it has not yet read; the destination sends all messages of its tiles to the
 * process, then READY. That is the commit: the leader names the new owner, sends the parcels that it held, then GO.
 * Meanwhile, messages of tiles of the two hosts to the process wait: they must not overtake the held parcels. A move
 * that is called off ends with GO to the old owner.
 *
 * The destination runs the process one message before the leader is informed. That is no second owner: the source
 * keeps the process frozen, and thaws it only when the leader calls the move off, which happens when the
 * destination refuses or when its host is gone (and has then ended its tiles by itself). Nothing that the process does
 * at the destination leaves that host before READY, which goes first. If the leader has meanwhile reported the process
 * lost, with its source, ABORT ends it there.
 *
 * An owner that is cut off keeps the frozen process until it is connected again; an owner that is cut off for good
 * ends itself before the leader reports its processes lost. Every frame of a move carries the leader's serial number of
 * the move; frames with another number are ignored.
 */
#ifndef WHERRY_MANYCORE_BOARD_HOSTS_PROTOCOL_H
#define WHERRY_MANYCORE_BOARD_HOSTS_PROTOCOL_H

#include "../../shared/shared_memory.h"
#include "channel.h"
#include "clock_identity.h"

#define HOST_MAX 8
#define NO_SLOT 255

enum parcel_kind { PARCEL_MAIL, PARCEL_SIGNAL, PARCEL_PIECE, PARCEL_ALLOW };

struct parcel { /* as it is sent; its bytes follow */
    uint8_t kind, from, port, origin; /* port: of the mailbox, portal or sync; origin: the board that has the credit */
    uint32_t ticket, size;
    uint64_t amount;                  /* signals; bytes that are allowed */
};

/* PROCESS, ENDED: a process's record, as the leader announces it, or its owner reports its end. */
struct process_info {
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

/* The destination's fields of the move's record. */
struct want { uint32_t serial, step, wanted, allow, taken; };

struct pages { /* they follow, in order */
    uint32_t serial, scanned, tracking, unused;
    uint64_t written[WRITTEN_WORDS];
};

struct piece { uint32_t serial, sent; }; /* 4 KiB follow */

struct runs { /* durations of the destination's clock, in nanoseconds from when the STATE had come */
    uint32_t serial, rounds;
    uint64_t bytes, before;
    int64_t copied, committed, first, all, told; /* `told`: when this was sent */
    int64_t come;                                /* when the STATE had come, by the clock */
    struct clock clock;
};

struct cost {
    uint32_t serial, to, rounds, tracking;
    uint32_t at_most, unused;
    uint64_t bytes, before;
    int64_t prepare, freezing, copying, committing, first, all; /* nanoseconds, each of one host's clock */
};

/* CPU time and messages of the tiles of a host, for load balancing. */
struct report {
    uint32_t cpus, unused;
    uint64_t cpu[TILE_MAX]; /* nanoseconds of CPU that its tiles have had */
    uint32_t said[PROCESS_MAX][PROCESS_MAX];
};

#endif
