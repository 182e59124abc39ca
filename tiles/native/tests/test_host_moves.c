/*
 * Moves between hosts on a network that is only a queue: the boards' own code (board/), three of them in this process,
 * over tiles that change a move's record as real ones do. Frames arrive in order, as a channel promises, but at any
 * time, and memory that they refer to is read at any time before; a tile, a host or the leader dies at any step.
 * Everything follows from the seed.
 *
 *   test_hosts [SEEDS]
 *
 * Checked all the time: nobody but one tile runs a process that is not reported lost, and each process takes every
 * other's messages once and in order, from memory that has moved with it. At the end of a run: all messages
 * that were sent have arrived, and a process that does not run was lost with a tile or host that was killed.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../board/migration/outgoing_move.h"
#include "../board/tile_processes.h"
#include "../shared/slots.h"
#include "sim_channel.h"
#include "sim_tile.h"

static void kill_tile(struct tile *tile)
{
    struct tile_record *record = &tile->shared->tiles[tile->number];
    pid_t pid;

    tile->dead = true;
    pid = fork();
    if (pid == 0)
        _exit(1);
    record->pid = pid;
    waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED | WNOWAIT);
    tiles_reap(tile->shared);
    REQUIRE(!atomic_load(&record->alive));
    record->pid = 0;
}

/* Some of the frames that it had sent are still delivered. */
static void kill_host(uint32_t host)
{
    world.dead[host] = true;
    for (int some = (int)draw(6); some > 0; some--)
        sim_deliver(host, 0);
    sim_drop_all(host, 0);
    sim_drop_all(0, host);
    world.boards[0].net.channels[host].heard = 0;
    for (uint32_t other = 1; host == 0 && other < HOSTS; other++)
        world.boards[other].net.channels[0].heard = world.boards[other].net.channels[0].answered = 0;
}

static void kill_somebody(void)
{
    world.killed++;
    if (world.victim == A_TILE)
        kill_tile(&world.tiles[draw(TILES)]);
    else if (world.victim == A_HOST)
        kill_host(1 + draw(HOSTS - 1));
}

static void serve(uint32_t host)
{
    struct board *board = &world.boards[host];
    int64_t now = shared_now();

    if (world.dead[host])
        return;
    for (uint32_t other = 0; other < HOSTS; other++)
        if (host == 0 ? !world.dead[other] : other == 0 && !world.dead[0])
            board->net.channels[other].heard = board->net.channels[other].answered = now;
    board->reports.reported = now;
    board_serve(board, NULL, 0);
}

static void check_owners(void)
{
    for (uint32_t process = 1; process <= PROCESSES; process++) {
        uint32_t running = 0;

        for (uint32_t i = 0; i < TILES; i++)
            running += !world.tiles[i].dead && !world.dead[i / EACH] && world.tiles[i].process == process &&
                       !world.tiles[i].frozen;
        REQUIRE(running <= 1 || shared_place(world.boards[0].shared, process).state != PLACE_RUNNING);
    }
}

static void ask(void)
{
    static const uint32_t modes[] = {MODE_FAITHFUL, MODE_DIRECT, MODE_PRECOPY};
    char why[REASON_SIZE];

    moves_ask(&world.boards[0].moves, 1 + draw(PROCESSES), draw(TILES), modes[draw(3)], why, sizeof(why));
}

static void step(void)
{
    uint32_t who = draw(100), from = draw(HOSTS), to = from ? 0 : 1 + draw(HOSTS - 1);

    world.steps++;
    if (who < 30)
        serve(draw(HOSTS));
    else if (who < 60)
        sim_step_tile(&world.tiles[draw(TILES)]);
    else if (who < 97)
        sim_deliver(from, to);
    else if (!world.calm)
        ask();
    check_owners();
}

static void start_process(uint32_t process, uint32_t tile)
{
    struct board *board = &world.boards[0];
    struct place place = {.state = PLACE_RUNNING, .tile = (uint8_t)tile};
    struct user_area *area;
    uint32_t slot;

    REQUIRE(slots_reserve(board->shared, &slot));
    board->shared->locations[process].ranks = 1;
    area = shared_area(board->shared, slot);
    user_area_init(area, process, board->shared->xfeatures, board->shared->xsize);
    area->text_end = TEXT_END;
    area->rodata_end = RODATA_END;
    area->end = END;
    user_area_add_thread(area, USER_BASE + 0x100, 0, 0);
    memset(shared_image(board->shared, slot), 0, END);
    place.slot = (uint8_t)slot;
    if (!shared_is_here(board->shared, tile)) {
        user_area_seal(area);
        coordinator_start(&board->coordinator, process, tile, area, shared_image(board->shared, slot));
        place.slot = NO_SLOT;
    }
    shared_commit(board->shared, process, atomic_load(&board->shared->locations[process].word), place);
    directory_announce(&board->directory, process);
}

static void begin_host(uint32_t host)
{
    static struct shared_memory *windows[HOSTS];
    struct board *board = &world.boards[host];

    if (!windows[host])
        close(shared_create(TILES, 2, &windows[host]));
    board_init(board, windows[host]);
    board->shared->first_tile = host * EACH;
    board->shared->here = EACH;
    board->net.host = host;
    board->net.hosts = HOSTS;
    for (uint32_t other = 0; other < HOSTS; other++)
        board->net.tiles[other] = EACH;
    memset(board->shared->tiles, 0, sizeof(board->shared->tiles));
    memset(board->shared->locations, 0, sizeof(board->shared->locations));
    memset(board->shared->moves, 0, sizeof(board->shared->moves));
    for (uint32_t process = 0; process < PROCESS_MAX; process++) {
        struct endpoint *endpoint = &board->shared->endpoints[process];

        memset((uint8_t *)endpoint + sizeof(endpoint->lock), 0, sizeof(*endpoint) - sizeof(endpoint->lock));
    }
    for (uint32_t tile = 0; tile < TILES; tile++)
        atomic_store(&board->shared->tiles[tile].alive, 1);
}

static void forget_host(uint32_t host)
{
    for (uint32_t process = 0; process < PROCESS_MAX; process++) {
        proxy_clear(&world.boards[host].proxy, process);
        record_set_snapshot(&world.boards[host].proxy, process, NULL);
    }
    for (uint32_t other = 0; other < HOSTS; other++)
        sim_drop_all(host, other);
}

static const struct tile *find_runner(uint32_t process)
{
    for (uint32_t i = 0; i < TILES; i++)
        if (!world.tiles[i].dead && !world.dead[i / EACH] && world.tiles[i].process == process &&
            !world.tiles[i].frozen)
            return &world.tiles[i];
    return NULL;
}

static void check_end(void)
{
    const struct tile *runners[PROCESSES + 1] = {NULL};

    REQUIRE(!moves_is_under_way(&world.boards[0].moves)); /* all requests for moves have been answered */
    for (uint32_t process = 1; process <= PROCESSES; process++) {
        uint8_t state = shared_place(world.boards[0].shared, process).state;

        runners[process] = find_runner(process);
        REQUIRE((state == PLACE_RUNNING) == (runners[process] != NULL));
        REQUIRE(state == PLACE_RUNNING || world.killed);
    }
    for (uint32_t one = 1; one <= PROCESSES; one++)
        for (uint32_t other = 1; other <= PROCESSES; other++)
            if (runners[one] && runners[other])
                REQUIRE(sim_memory(runners[one])->sent[other] == sim_memory(runners[other])->received[one]);
}

static void run(uint64_t seed, enum victim victim)
{
    uint32_t when = seed % STEPS;

    memset(&world, 0, sizeof(world));
    world.seed = seed;
    world.victim = victim;
    world.random = seed * 0x9e3779b97f4a7c15u + 1;
    when = draw(STEPS);
    for (uint32_t host = 0; host < HOSTS; host++)
        begin_host(host);
    for (uint32_t i = 0; i < TILES; i++)
        world.tiles[i] = (struct tile){.number = i, .shared = world.boards[i / EACH].shared};
    for (uint32_t process = 1; process <= PROCESSES; process++)
        start_process(process, (process * 2) % TILES);
    for (uint32_t i = 0; i < STEPS && !world.dead[0]; i++) {
        if (i == when && victim == THE_LEADER)
            kill_host(0);
        else if (i == when && victim != NOBODY)
            kill_somebody();
        step();
    }
    world.calm = true;
    for (uint32_t i = 0; i < CALM && !world.dead[0]; i++)
        step();
    if (!world.dead[0])
        check_end();
    for (uint32_t host = 1; host < HOSTS && world.dead[0]; host++) { /* without its leader a host ends, at once */
        serve(host);
        REQUIRE(world.boards[host].net.stopping);
    }
    for (uint32_t host = 0; host < HOSTS; host++)
        forget_host(host);
}

/*
 * The STATE has been under way for 8 ms, the answer for 1 ms: the times that are reported, and whether they are marked
 * as bounds.
 */
static void check_way(bool shared)
{
    enum { MS = 1000000 };
    struct board *board = &world.boards[0];
    struct move *move;
    struct runs runs = {.serial = 7, .copied = 1, .committed = 2, .first = 3, .all = 4, .told = MS};
    int64_t now;

    memset(&world, 0, sizeof(world));
    begin_host(0);
    strcpy(board->net.clock.boot, "one");
    strcpy(runs.clock.boot, shared ? "one" : "other");
    move = &board->shared->moves[EACH];
    move->process = 1;
    move->serial = runs.serial;
    move->to = EACH;
    atomic_store(&move->step, MOVE_FROZEN);
    now = shared_now();
    move->frozen = now - 10 * MS;
    move->committed = now;
    runs.come = now - 2 * MS;
    outgoing_runs(&board->proxy, 1, &runs);
    CHECK(atomic_load(&move->step) == MOVE_DONE && move->at_most == !shared);
    if (shared)
        CHECK(move->copied == runs.come + 1 && atomic_load(&move->first) == runs.come + 3);
    else
        CHECK(atomic_load(&move->first) >= now - MS + 3); /* as if the answer had taken no time */
    forget_host(0);
}

int main(int argc, char **argv)
{
    uint64_t seeds = argc > 1 ? strtoul(argv[1], NULL, 10) : 40;
    uint32_t moves = 0;

    check_way(true);
    check_way(false);
    for (uint64_t seed = 1; seed <= seeds; seed++)
        for (int victim = NOBODY; victim < VICTIMS; victim++) {
            run(seed, (enum victim)victim);
            moves += world.moves;
        }
    printf("%u moves\n", moves);
    CHECK(moves > seeds);
    return 0;
}
