/*
 * The protocol of a move on a bad network: the graph that tiles run (move_graph.c), over bodies that exchange messages
 * which are delayed, lost, repeated and overtake each other, with patience that ends at any moment, and with the
 * source, the destination or the name server killed at every step. Everything follows from the seed.
 *
 *   test_protocol [SEEDS]
 *
 * Checked at every step: the location entry names the tile that runs the process, in that epoch; the
 * process sends and receives each number once and in order. At the end of a run without more faults: the process runs,
 * or it is reported lost and something was killed.
 */
#include <stdlib.h>
#include <string.h>

#include "protocol.h"
#include "protocol_tasks.h"

/* The process does something, where it runs. */
static void run_process(struct tile *tile)
{
    REQUIRE(world.entry.owner == tile->number && world.entry.epoch == tile->epoch);
    if (chance(50)) {
        REQUIRE(tile->state.sent == world.sent);
        world.sent = ++tile->state.sent;
    } else if (world.received < world.posted) {
        REQUIRE(tile->state.received == world.received);
        world.received = ++tile->state.received;
    }
}

/* The name server: it asks for moves, not always patiently, and swaps the entry of a tile that died. */
static void run_names(void)
{
    struct message ask = {.from = NAMES, .fact = ASKED, .count = 1, .epoch = world.entry.epoch};

    if (world.entry.owner != LOST && world.tiles[world.entry.owner].dead) {
        if (chance(30)) {
            swap(world.entry.epoch, LOST);
            world.reported = true;
        }
        return;
    }
    ask.to = (int)draw(TILES);
    if (world.entry.owner == LOST || ask.to == world.entry.owner || world.calm || world.in_flight == FLIGHT)
        return;
    if (chance(40))
        world.flight[world.in_flight++] = ask;
}

static void step(void)
{
    uint32_t who = draw(ACTORS + 3);

    world.steps++;
    if (who < TILES && !world.tiles[who].dead)
        tasks_step(&world.tiles[who].tasks);
    else if (who == NAMES && !world.names_dead)
        run_names();
    else if (who == NAMES) /* without it every tile ends, each in its time */
        world.tiles[draw(TILES)].dead = true;
    else if (who == ACTORS)
        world.posted++;
    else
        deliver();
    for (int tile = 0; tile < TILES; tile++)
        if (world.tiles[tile].runs && !world.tiles[tile].dead && chance(50))
            run_process(&world.tiles[tile]);
}

static void run(uint64_t seed, int mode, int victim, uint32_t when)
{
    int running = 0;

    memset(&world, 0, sizeof(world));
    world.seed = seed;
    snprintf(world.scene, sizeof(world.scene), "mode %d, %s%d killed at %u", mode, victim == NOBODY ? "nobody " : "",
             victim, when);
    world.random = seed * 0x9e3779b97f4a7c15u + 1;
    world.bad = draw(16);
    world.faithful = mode == 1;
    world.precopy = mode == 2;
    world.entry.epoch = 1;
    for (int tile = 0; tile < TILES; tile++) {
        world.tiles[tile].number = tile;
        REQUIRE(tasks_start(&world.tiles[tile].tasks, &move_graph, protocol_tasks, &world.tiles[tile], TASK_ARM));
    }
    for (uint32_t i = 0; i < STEPS; i++) {
        if (i == when && victim == NAMES)
            world.names_dead = true;
        else if (i == when && victim != NOBODY)
            world.tiles[victim].dead = true;
        step();
    }
    world.calm = true;
    for (uint32_t i = 0; i < CALM; i++)
        step();
    for (int tile = 0; tile < TILES; tile++)
        running += world.tiles[tile].runs && !world.tiles[tile].dead;
    if (world.names_dead)
        REQUIRE(running <= 1);
    else
        REQUIRE(running == 1 || (running == 0 && world.reported && victim != NOBODY));
}

int main(int argc, char **argv)
{
    uint64_t seeds = argc > 1 ? strtoul(argv[1], NULL, 10) : 3, moves = 0, runs = 0;

    for (uint64_t seed = 1; seed <= seeds; seed++)
        for (int mode = 0; mode < 3; mode++)
            for (int victim = NOBODY; victim <= NAMES; victim++)
                for (uint32_t when = 0; when < STEPS; when += victim == NOBODY ? 4 : 1) {
                    run(seed * 1000003 + when * 31 + (uint32_t)(victim + 1) * 7 + (uint32_t)mode, mode, victim, when);
                    moves += world.moves;
                    runs++;
                }
    CHECK(moves > 1000); /* it was about something */
    printf("%lu runs, %lu moves\n", (unsigned long)runs, (unsigned long)moves);
    return 0;
}
