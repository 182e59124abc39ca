/*
 * The world of test_host_moves.c: three hosts with two tiles each, in one process; all that happens follows from a
 * seed.
 */
#ifndef WHERRY_TEST_SIM_H
#define WHERRY_TEST_SIM_H

#include <stdio.h>

#include "../board/board.h"
#include "check.h"

enum { HOSTS = 3, EACH = 2, TILES = HOSTS * EACH, PROCESSES = 3, PIECES = 4, STEPS = 4000, CALM = 20000 };
enum victim { NOBODY, A_TILE, A_HOST, THE_LEADER, VICTIMS };

#define TEXT_END 0x1000
#define RODATA_END 0x2000
#define MEMORY 0x3000 /* where the process keeps its counts */
#define END 0x4000
#define PORT 3

struct note { uint32_t from, number; };

/* A tile, as far as a move uses it: see source.c and destination.c. */
struct tile {
    struct shared_memory *shared;
    uint32_t number, process, slot;
    uint64_t place;
    bool dead, frozen;
    struct move *move; /* it is the destination of */
    uint32_t pieces;
};

struct flying {
    struct flying *next;
    struct frame_head head;
    struct iovec *iov;
    size_t iov_count, own;
    uint8_t payload[];
};

struct world {
    uint64_t seed, random;
    enum victim victim;
    struct board boards[HOSTS];
    bool dead[HOSTS];
    struct tile tiles[TILES];
    struct flying *first[HOSTS][HOSTS], *last[HOSTS][HOSTS]; /* from, to */
    bool calm;
    uint32_t steps, moves, killed;
};

extern struct world world;

uint32_t draw(uint32_t below);
bool chance(uint32_t percent);

#define REQUIRE(condition)                                                                                         \
    do {                                                                                                           \
        if (!(condition))                                                                                          \
            fprintf(stderr, "seed %lu, victim %d, step %u\n", (unsigned long)world.seed, world.victim, world.steps); \
        CHECK(condition);                                                                                          \
    } while (0)

#endif
