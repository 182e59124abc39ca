/*
 * The world of test_move_protocol.c: three tiles, the location entry, and a network that loses, repeats and reorders
 * messages.
 */
#ifndef WHERRY_TEST_PROTOCOL_H
#define WHERRY_TEST_PROTOCOL_H

#include <stdio.h>

#include "../migration/move_graph.h"
#include "check.h"

enum { TILES = 3, NAMES = TILES, ACTORS, LOST = 99, NOBODY = -1, FLIGHT = 64, PIECES = 3, STEPS = 500, CALM = 1500 };

/* Messages of tiles about the move that began with an epoch: facts, so that receiving one twice does no harm. */
enum fact { ASKED, TRACKING, WANTED, SCANNED, RESERVED, FROZEN, ALLOWED, PIECE, TAKEN, DONE, ABORTED, FACTS };

struct process_state { uint32_t sent, received; }; /* the process */

struct message {
    int to, from;
    enum fact fact;
    uint32_t epoch, count;
    struct process_state image;
};

struct tile {
    struct tasks tasks;
    int number;
    bool dead, runs, frozen, sealed;
    uint32_t epoch;              /* of the entry by which we have the process; 0: we have none */
    struct process_state state;
    /* The move that we take part in. */
    bool active, source, checked;
    uint32_t move;               /* its epoch */
    int peer;
    struct process_state image;
    uint32_t piece;
    /* The facts received of the latest move that one was received of. */
    uint32_t heard_move, heard[FACTS];
    int heard_from;
    struct process_state heard_image;
};

struct world {
    uint64_t seed, random;
    char scene[64];
    struct { uint32_t epoch; int owner; } entry; /* the location entry: one word, swapped */
    struct tile tiles[TILES];
    bool names_dead, calm, reported;
    bool faithful, precopy;
    struct message flight[FLIGHT];
    int in_flight;
    uint32_t sent, posted, received; /* messages that the process has sent, that were sent to it, that it took */
    uint32_t moves, steps, bad; /* per cent of messages that are lost, of those left that come twice */
};

extern struct world world;

/* A run that fails prints all that is needed to repeat it. */
#define REQUIRE(condition)                                                                                          \
    do {                                                                                                            \
        if (!(condition))                                                                                           \
            protocol_describe();                                                                                             \
        CHECK(condition);                                                                                           \
    } while (0)

/* Prints where every tile is. */
void protocol_describe(void);
uint32_t draw(uint32_t below);
bool chance(uint32_t percent);
/* Swaps the location entry, if it is still of this epoch. */
bool swap(uint32_t epoch, int owner);
/* Sends a fact to the peer, perhaps; and whether the tile has received one of its move, with this count or more. */
void tell(const struct tile *tile, enum fact fact, uint32_t count);
bool heard(const struct tile *tile, enum fact fact, uint32_t count);
/* Delivers any one of the messages in flight. */
void deliver(void);

#endif
