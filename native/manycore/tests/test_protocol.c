/*
 * The protocol of a move on a bad network: the graph that tiles run (movegraph.c), over bodies that exchange messages
 * which are delayed, lost, repeated and overtake each other, with patience that ends at any moment, and with the
 * source, the destination or the name server killed at every step. Everything follows from the seed.
 *
 *   test_protocol [SEEDS]
 *
 * Checked at every step: a tile that runs the process is the one that the location entry names, in that epoch; the
 * process sends and receives each number once and in order. At the end of a run without more faults: the process runs,
 * or it is reported lost and something was killed.
 */
#include <string.h>

#include "../movegraph.h"
#include "check.h"

enum { TILES = 3, NAMES = TILES, ACTORS, LOST = 99, NOBODY = -1, FLIGHT = 64, PIECES = 3, STEPS = 500, CALM = 1500 };

/* What one tile tells another about the move that began with an epoch; a fact, so hearing it twice does no harm. */
enum fact { ASKED, TRACKING, WANTED, SCANNED, RESERVED, FROZEN, ALLOWED, PIECE, TAKEN, DONE, ABORTED, FACTS };

struct state { uint32_t sent, received; }; /* the process */

struct message {
    int to, from;
    enum fact fact;
    uint32_t epoch, count;
    struct state image;
};

struct tile {
    struct tasks tasks;
    int number;
    bool dead, runs, frozen, sealed;
    uint32_t epoch;              /* of the entry by which we have the process; 0: we have none */
    struct state state;
    /* The move that we take part in. */
    bool active, source, checked;
    uint32_t move;               /* its epoch */
    int peer;
    struct state image;
    uint32_t piece;
    /* What we have heard, of the latest move that we have heard of. */
    uint32_t heard_move, heard[FACTS];
    int heard_from;
    struct state heard_image;
};

static struct {
    uint64_t seed, random;
    char scene[64];
    struct { uint32_t epoch; int owner; } entry; /* the location entry: one word, swapped */
    struct tile tiles[TILES];
    bool names_dead, calm, reported;
    bool faithful, precopy;
    struct message flight[FLIGHT];
    int in_flight;
    uint32_t sent, posted, received; /* what the process has said, what was sent to it, what it has taken */
    uint32_t moves, steps, bad; /* per cent of messages that are lost, of those left that come twice */
} world;

/* A run that fails says all that is needed to see it again. */
#define REQUIRE(condition)                                                                                          \
    do {                                                                                                            \
        if (!(condition))                                                                                           \
            describe();                                                                                             \
        CHECK(condition);                                                                                           \
    } while (0)

static void describe(void)
{
    fprintf(stderr, "%s, step %u of seed %lu; the entry: epoch %u, owner %d\n", world.scene, world.steps,
            (unsigned long)world.seed, world.entry.epoch, world.entry.owner);
    for (int i = 0; i < TILES; i++) {
        const struct tile *tile = &world.tiles[i];

        fprintf(stderr, "tile %d%s: epoch %u%s%s; %s of move %u, at %s\n", i, tile->dead ? " (dead)" : "", tile->epoch,
                tile->runs ? ", runs" : "", tile->frozen ? ", frozen" : "",
                !tile->active ? "no part" : tile->source ? "source" : "destination", tile->move,
                move_graph.tasks[tile->tasks.ready[tile->tasks.first]].name);
    }
}

static uint32_t draw(uint32_t below)
{
    world.random ^= world.random << 13;
    world.random ^= world.random >> 7;
    world.random ^= world.random << 17;
    return (uint32_t)(world.random >> 33) % below;
}

static bool chance(uint32_t percent)
{
    return draw(100) < percent;
}

static bool swap(uint32_t epoch, int owner)
{
    if (world.entry.epoch != epoch)
        return false;
    world.entry.epoch++;
    world.entry.owner = owner;
    return true;
}

static void tell(const struct tile *tile, enum fact fact, uint32_t count)
{
    struct message message = {tile->peer, tile->number, fact, tile->move, count, tile->state};
    int copies = world.calm ? 1 : chance(world.bad) ? 0 : chance(world.bad) ? 2 : 1;

    while (copies-- && world.in_flight < FLIGHT)
        world.flight[world.in_flight++] = message;
}

static bool heard(const struct tile *tile, enum fact fact, uint32_t count)
{
    return tile->heard_move == tile->move && tile->heard[fact] >= count;
}

static bool has_patience(const struct tile *tile)
{
    return !chance(world.calm ? 30 : 2) && !heard(tile, ABORTED, 1) && world.entry.epoch == tile->move;
}

static int arm(void *context)
{
    struct tile *tile = context;

    tile->active = tile->sealed = tile->checked = false;
    return EXIT_NEXT;
}

static int wait_idle(struct tile *tile)
{
    bool source = tile->epoch;

    if (!source && world.entry.owner == tile->number)
        return EXIT_STARTED;
    /* What was called off is over, also when an older message comes after it. */
    if (tile->heard[ABORTED] || !tile->heard_move || tile->heard_move != (source ? tile->epoch : world.entry.epoch) ||
        !(source ? tile->heard[TRACKING] || tile->heard[RESERVED] : tile->heard[ASKED]))
        return EXIT_AGAIN;
    tile->active = true;
    tile->source = source;
    tile->move = tile->heard_move;
    tile->peer = source ? tile->heard_from : world.entry.owner;
    tile->piece = 0;
    if (!source)
        tile->heard[ASKED] = 0; /* done with that */
    return source ? EXIT_NEXT : EXIT_ASKED;
}

static int wait_source(struct tile *tile)
{
    if (tile->sealed)
        return EXIT_NEXT;
    if (heard(tile, ABORTED, 1) || world.entry.epoch != tile->move || chance(2))
        return EXIT_OVER;
    if (heard(tile, RESERVED, 1))
        return EXIT_FREEZE;
    return heard(tile, WANTED, tile->piece + 1) ? EXIT_SCAN : EXIT_AGAIN;
}

static int wait(void *context)
{
    struct tile *tile = context;
    int found = tile->active ? EXIT_NEXT : wait_idle(tile);

    if (found != EXIT_NEXT)
        return found;
    if (tile->source)
        return wait_source(tile);
    if (heard(tile, FROZEN, 1)) {
        tile->image = tile->heard_image;
        return EXIT_NEXT;
    }
    if (world.precopy && tile->piece && heard(tile, SCANNED, tile->piece))
        return EXIT_ROUND;
    return has_patience(tile) ? EXIT_AGAIN : EXIT_LOST;
}

static int handle(void *context)
{
    struct tile *tile = context;

    tile->piece = 0;
    return world.faithful ? EXIT_NEXT : tile->source ? EXIT_OVER : EXIT_ELSE;
}

static int group(void *context)
{
    struct tile *tile = context;

    if (!tile->source && tile->piece == 1 && !tile->checked) {
        tile->checked = true;
        return EXIT_ELSE;
    }
    return tile->piece < PIECES ? EXIT_NEXT : tile->source ? EXIT_OVER : EXIT_END;
}

static int loop(void *context)
{
    struct tile *tile = context;

    if (tile->piece == PIECES || (tile->piece == 1 && !tile->source && !tile->checked))
        return EXIT_END;
    return tile->source ? EXIT_NEXT : EXIT_ELSE;
}

static int is_used(void *context)
{
    (void)context;
    return EXIT_ELSE;
}

static int patient(struct tile *tile)
{
    return has_patience(tile) ? EXIT_AGAIN : EXIT_FAILED;
}

static int put(void *context)
{
    struct tile *tile = context;

    if (!heard(tile, ALLOWED, tile->piece + 1))
        return patient(tile);
    tell(tile, PIECE, ++tile->piece);
    return EXIT_NEXT;
}

static int sent(void *context)
{
    struct tile *tile = context;

    return heard(tile, TAKEN, tile->piece) ? EXIT_NEXT : patient(tile);
}

static int allow(void *context)
{
    struct tile *tile = context;

    tell(tile, ALLOWED, tile->piece + 1);
    return EXIT_NEXT;
}

static int place(void *context)
{
    (void)context;
    return EXIT_NEXT;
}

static int received(void *context)
{
    struct tile *tile = context;

    if (!heard(tile, PIECE, tile->piece + 1))
        return patient(tile);
    tell(tile, TAKEN, ++tile->piece);
    return EXIT_NEXT;
}

static int finish(void *context)
{
    struct tile *tile = context;

    REQUIRE(!tile->frozen); /* nothing stands still for ever */
    return EXIT_NEXT;
}

static int start(void *context)
{
    struct tile *tile = context;

    REQUIRE(world.entry.epoch == 1); /* what a move has brought is never started a second time */
    tile->epoch = 1;
    tile->runs = true;
    return EXIT_NEXT;
}

static int reserve(void *context)
{
    struct tile *tile = context;

    if (chance(3))
        return EXIT_FAILED;
    if (world.precopy)
        tell(tile, WANTED, ++tile->piece);
    tell(tile, world.precopy ? TRACKING : RESERVED, 1);
    return EXIT_NEXT;
}

static int scan(void *context)
{
    struct tile *tile = context;

    tell(tile, SCANNED, ++tile->piece);
    return EXIT_NEXT;
}

static int next_round(void *context)
{
    struct tile *tile = context;

    if (tile->piece < PIECES && chance(60)) {
        tell(tile, WANTED, ++tile->piece);
    } else {
        tile->piece = 0;
        tell(tile, RESERVED, 1);
    }
    return EXIT_NEXT;
}

static int freeze(void *context)
{
    struct tile *tile = context;

    tile->frozen = true; /* no core takes a thread; the last one to give up its own comes to it some time later */
    if (chance(40))
        return EXIT_AGAIN;
    tile->runs = false;
    return EXIT_NEXT;
}

static int seal(void *context)
{
    struct tile *tile = context;

    if (heard(tile, ABORTED, 1)) {
        tile->frozen = false;
        tile->runs = true;
        return EXIT_FAILED;
    }
    tile->sealed = true;
    tell(tile, FROZEN, 1);
    return EXIT_NEXT;
}

static int check(void *context)
{
    (void)context;
    return chance(5) ? EXIT_FAILED : world.faithful ? EXIT_ELSE : EXIT_NEXT;
}

static int commit(void *context)
{
    struct tile *tile = context;

    return swap(tile->move, tile->number) ? EXIT_NEXT : EXIT_FAILED;
}

static int adopt(void *context)
{
    struct tile *tile = context;

    tile->epoch = tile->move + 1;
    tile->state = tile->image;
    tile->runs = true;
    tell(tile, DONE, 1);
    world.moves++;
    return EXIT_NEXT;
}

static int discard(void *context)
{
    struct tile *tile = context;

    tell(tile, ABORTED, 1);
    return EXIT_NEXT;
}

static int await(void *context)
{
    struct tile *tile = context;

    return !heard(tile, DONE, 1) && has_patience(tile) ? EXIT_AGAIN : EXIT_NEXT;
}

static int take_back(void *context)
{
    struct tile *tile = context;
    bool ours = swap(tile->move, tile->number);

    tile->epoch = ours ? tile->move + 1 : 0;
    tile->runs = ours;
    tile->frozen = false;
    return EXIT_NEXT;
}

static task_body *const bodies[MOVE_TASKS] = {
    [TASK_ARM] = arm, [TASK_WAIT] = wait, [TASK_HANDLE] = handle, [TASK_GROUP] = group, [TASK_LOOP] = loop,
    [TASK_WRITE] = is_used, [TASK_AWRITE] = put, [TASK_SENT] = sent, [TASK_READ] = is_used, [TASK_ALLOW] = allow,
    [TASK_AREAD] = place, [TASK_RECEIVED] = received, [TASK_FINISH] = finish, [TASK_START] = start,
    [TASK_RESERVE] = reserve, [TASK_SCAN] = scan, [TASK_ROUND] = next_round, [TASK_FREEZE] = freeze,
    [TASK_SEAL] = seal, [TASK_COPY] = place, [TASK_CHECK] = check, [TASK_PAGES] = place, [TASK_COMMIT] = commit,
    [TASK_ADOPT] = adopt, [TASK_DISCARD] = discard, [TASK_AWAIT] = await, [TASK_TAKE_BACK] = take_back,
};

static void deliver(void)
{
    struct message message;
    struct tile *tile;
    uint32_t which;

    if (!world.in_flight)
        return;
    which = draw((uint32_t)world.in_flight);
    message = world.flight[which];
    world.flight[which] = world.flight[--world.in_flight];
    tile = &world.tiles[message.to];
    if (message.epoch < tile->heard_move || tile->dead)
        return;
    if (message.epoch > tile->heard_move) {
        tile->heard_move = message.epoch;
        memset(tile->heard, 0, sizeof(tile->heard));
    }
    if (tile->heard[message.fact] < message.count)
        tile->heard[message.fact] = message.count;
    tile->heard_from = message.from;
    if (message.fact == FROZEN)
        tile->heard_image = message.image;
}

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
        REQUIRE(tasks_start(&world.tiles[tile].tasks, &move_graph, bodies, &world.tiles[tile], TASK_ARM));
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
