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
 *            <-- MIGRATE -----
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
#ifndef WHERRY_MANYCORE_BOARD_FRAMES_H
#define WHERRY_MANYCORE_BOARD_FRAMES_H

#include "../window.h"
#include "clock.h"
#include "link.h"

#define HOST_MAX 8
#define NO_SLOT 255

enum parcel_kind { PARCEL_MAIL, PARCEL_SIGNAL, PARCEL_PIECE, PARCEL_ALLOW };

struct parcel { /* as it is sent; its bytes follow */
    uint8_t kind, from, port, origin; /* port: of the mailbox, portal or sync; origin: the board that has the credit */
    uint32_t ticket, size;
    uint64_t amount;                  /* signals; bytes that are allowed */
};

/* A process's record as the leader tells it to the others, or an owner its end to the leader. */
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

#endif
