/*
 * Moves between hosts on a network that is only a queue: the boards' own code (board/), three of them in this process, over
 * tiles that do what tiles do to a move's record. Frames arrive in order, as a link promises, but at any time, and what was
 * lent to them is read at any time before; a tile, a host or the leader dies at any step. Everything follows from the seed.
 *
 *   test_hosts [SEEDS]
 *
 * Checked all the time: nobody but one tile runs a process that is not reported lost, and each process takes every other's
 * messages once and in order, from memory that has moved with it. At the end of a run: all that was said is heard, and who
 * does not run was lost with what was killed.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../board/board.h"
#include "../board/departure.h"
#include "../board/slots.h"
#include "../board/tiles.h"
#include "check.h"

enum { HOSTS = 3, EACH = 2, TILES = HOSTS * EACH, PROCESSES = 3, PIECES = 4, STEPS = 4000, CALM = 20000 };
enum victim { NOBODY, A_TILE, A_HOST, THE_LEADER, VICTIMS };

#define TEXT_END 0x1000
#define RODATA_END 0x2000
#define MEMORY 0x3000 /* where the process keeps what it knows */
#define END 0x4000
#define PORT 3

struct memory { uint32_t sent[PROCESSES + 1], received[PROCESSES + 1]; };
struct note { uint32_t from, number; };

/* What a tile is to a move: see source.c and destination.c. */
struct tile {
    struct window *window;
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

static struct {
    uint64_t seed, random;
    enum victim victim;
    struct board boards[HOSTS];
    bool dead[HOSTS];
    struct tile tiles[TILES];
    struct flying *first[HOSTS][HOSTS], *last[HOSTS][HOSTS]; /* from, to */
    bool calm;
    uint32_t steps, moves, killed;
} world;

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

#define REQUIRE(condition)                                                                                         \
    do {                                                                                                           \
        if (!(condition))                                                                                          \
            fprintf(stderr, "seed %lu, victim %d, step %u\n", (unsigned long)world.seed, world.victim, world.steps); \
        CHECK(condition);                                                                                          \
    } while (0)

/* The link: in order, once. */

static uint32_t host_of(const struct link *link, uint32_t *to)
{
    for (uint32_t host = 0; host < HOSTS; host++) {
        const struct net *net = &world.boards[host].net;

        if (link < net->links || link >= net->links + HOST_MAX)
            continue;
        *to = host == 0 ? (uint32_t)(link - net->links) : 0;
        return host;
    }
    abort();
}

void link_send_iov(struct link *link, enum frame_kind kind, uint32_t process, uint32_t host, const void *own,
                    size_t own_size, const struct iovec *iov, size_t iov_count)
{
    struct flying *frame = calloc(1, sizeof(*frame) + own_size);
    uint32_t to, from = host_of(link, &to);

    frame->head = (struct frame_head){.kind = (uint16_t)kind, .process = (uint8_t)process, .host = (uint8_t)host};
    frame->own = own_size;
    if (own_size)
        memcpy(frame->payload, own, own_size);
    frame->iov = calloc(iov_count + 1, sizeof(*iov));
    if (iov_count)
        memcpy(frame->iov, iov, iov_count * sizeof(*iov));
    frame->iov_count = iov_count;
    if (world.last[from][to])
        world.last[from][to]->next = frame;
    else
        world.first[from][to] = frame;
    world.last[from][to] = frame;
}

void link_send_parts(struct link *link, enum frame_kind kind, uint32_t process, uint32_t host, const void *one,
                     size_t one_size, const void *two, size_t two_size)
{
    uint8_t *both = malloc(one_size + two_size + 1);

    if (one_size)
        memcpy(both, one, one_size);
    if (two_size)
        memcpy(both + one_size, two, two_size);
    link_send_iov(link, kind, process, host, both, one_size + two_size, NULL, 0);
    free(both);
}

static void free_frame(struct flying *frame)
{
    free(frame->iov);
    free(frame);
}

static void deliver(uint32_t from, uint32_t to)
{
    struct flying *frame = world.first[from][to];
    size_t size = frame ? frame->own : 0;
    uint8_t *payload;

    if (!frame)
        return;
    world.first[from][to] = frame->next;
    if (!frame->next)
        world.last[from][to] = NULL;
    for (size_t i = 0; i < frame->iov_count; i++)
        size += frame->iov[i].iov_len;
    payload = malloc(size + 1);
    memcpy(payload, frame->payload, frame->own);
    size = frame->own;
    for (size_t i = 0; i < frame->iov_count; size += frame->iov[i++].iov_len)
        memcpy(payload + size, frame->iov[i].iov_base, frame->iov[i].iov_len);
    frame->head.size = (uint32_t)size;
    if (!world.dead[to])
        net_handle(&world.boards[to].net, from, &frame->head, payload);
    free(payload);
    free_frame(frame);
}

static void drop_all(uint32_t from, uint32_t to)
{
    while (world.first[from][to]) {
        struct flying *frame = world.first[from][to];

        world.first[from][to] = frame->next;
        free_frame(frame);
    }
    world.last[from][to] = NULL;
}

/* The tiles. */

static struct memory *memory_of(const struct tile *tile)
{
    return (struct memory *)(window_image(tile->window, tile->slot) + MEMORY);
}

static void mark(struct move *move)
{
    memset(move->written, 0, sizeof(move->written));
    for (uint32_t offset = 0; offset < END; offset += PAGE_SIZE)
        move->written[0] |= 1ull << offset / PAGE_SIZE;
    move->tracking = 2;
}

static uint8_t *piece_at(struct window *window, uint32_t slot, uint32_t piece)
{
    struct uarea *area = window_area(window, slot);

    return piece == 0 ? area->head : piece == 1 ? (uint8_t *)&area->threads[0]
                                                : window_image(window, slot) + (piece == 2 ? 0 : MEMORY);
}

static uint32_t slot_of(const struct move *move)
{
    uint32_t slot = place_unpack(move->place).slot;

    return slot < TILE_MAX ? slot : move->slot;
}

static void release(struct tile *tile)
{
    tile->process = 0;
    tile->frozen = false;
}

static struct move *find_request(struct tile *tile)
{
    for (uint32_t to = 0; to < TILES; to++) {
        struct move *move = &tile->window->moves[to];

        if (atomic_load(&move->step) >= MOVE_TRACKING && atomic_load(&move->step) <= MOVE_ABORTED &&
            move->from == tile->number && move->process == tile->process && move->place == tile->place)
            return move;
    }
    return NULL;
}

static void step_to(struct move *move, uint32_t from, uint32_t to)
{
    atomic_compare_exchange_strong(&move->step, &from, to);
}

static void give_frozen(struct tile *tile, struct move *move)
{
    struct place place = place_unpack(tile->place);

    if (atomic_load(&tile->window->locations[tile->process].word) != tile->place) {
        release(tile);
    } else if (!move || atomic_load(&move->step) == MOVE_ABORTED ||
               !atomic_load(&tile->window->tiles[move->to].alive)) {
        if (move)
            step_to(move, MOVE_FROZEN, MOVE_ABORTED);
        window_commit(tile->window, tile->process, tile->place, place);
        place.epoch++;
        tile->place = place_pack(place);
        tile->frozen = false;
    } else if (move->mode == MODE_FAITHFUL && atomic_load(&move->allow) > atomic_load(&move->sent)) {
        memcpy(move->piece, piece_at(tile->window, tile->slot, atomic_load(&move->sent)), PAGE_SIZE);
        atomic_fetch_add(&move->sent, 1);
    }
}

static void give(struct tile *tile)
{
    struct move *move = find_request(tile);

    if (tile->frozen) {
        give_frozen(tile, move);
    } else if (move && atomic_load(&move->step) == MOVE_TRACKING &&
               atomic_load(&move->wanted) != atomic_load(&move->scanned)) {
        mark(move);
        atomic_fetch_add(&move->scanned, 1);
    } else if (move && atomic_load(&move->step) == MOVE_RESERVED) {
        uint32_t reserved = MOVE_RESERVED;

        mark(move);
        uarea_seal(window_area(tile->window, tile->slot));
        move->freezing = move->frozen = window_now();
        tile->frozen = atomic_compare_exchange_strong(&move->step, &reserved, MOVE_FROZEN);
    }
}

static bool takes_pieces(struct tile *tile, struct move *move)
{
    if (tile->pieces == PIECES)
        return false;
    if (atomic_load(&move->allow) == tile->pieces) {
        atomic_store(&move->allow, tile->pieces + 1);
    } else if (atomic_load(&move->sent) == tile->pieces + 1) {
        memcpy(piece_at(tile->window, move->slot, tile->pieces), move->piece, PAGE_SIZE);
        atomic_store(&move->taken, ++tile->pieces);
    }
    return true;
}

static void copy_here(struct tile *tile, struct move *move)
{
    if (slot_of(move) == move->slot)
        return;
    memcpy(window_area(tile->window, move->slot), window_area(tile->window, slot_of(move)), sizeof(struct uarea));
    memcpy(window_image(tile->window, move->slot), window_image(tile->window, slot_of(move)), END);
}

static void adopt(struct tile *tile, struct move *move)
{
    struct place place = {.state = PLACE_RUNNING, .slot = (uint8_t)move->slot, .tile = (uint8_t)tile->number};
    uint32_t process = move->process;

    tile->move = NULL;
    copy_here(tile, move);
    if (chance(5) || uarea_check(window_area(tile->window, move->slot), process, tile->window->xfeatures,
                                 tile->window->xsize)) {
        snprintf(move->why, sizeof(move->why), "refused");
        step_to(move, MOVE_FROZEN, MOVE_ABORTED);
        return;
    }
    move->copied = window_now();
    if (!window_commit(tile->window, process, move->place, place)) {
        step_to(move, MOVE_FROZEN, MOVE_ABORTED);
        return;
    }
    move->committed = window_now();
    tile->process = process;
    tile->slot = move->slot;
    tile->place = atomic_load(&tile->window->locations[process].word);
    atomic_fetch_add(&tile->window->locations[process].moves, 1);
    world.moves++;
    step_to(move, MOVE_FROZEN, MOVE_DONE);
    atomic_store(&move->first, move->committed);
    atomic_store(&move->all, move->committed);
}

static void take(struct tile *tile)
{
    struct move *move = tile->move;
    uint32_t step = atomic_load(&move->step);

    if (step < MOVE_TRACKING || step == MOVE_ABORTED || atomic_load(&tile->window->locations[move->process].word) != move->place) {
        if (step < MOVE_DONE)
            step_to(move, step, MOVE_ABORTED);
        tile->move = NULL;
    } else if (step == MOVE_TRACKING && atomic_load(&move->wanted) == atomic_load(&move->scanned)) {
        move->rounds++;
        if (chance(50))
            atomic_fetch_add(&move->wanted, 1);
        else
            step_to(move, MOVE_TRACKING, MOVE_RESERVED);
    } else if (step == MOVE_FROZEN && !(move->mode == MODE_FAITHFUL && takes_pieces(tile, move))) {
        adopt(tile, move);
    }
}

static void look(struct tile *tile)
{
    struct move *own = &tile->window->moves[tile->number];

    for (uint32_t process = 1; process <= PROCESSES; process++) {
        struct place place = window_place(tile->window, process);

        if (place.state != PLACE_RUNNING || place.tile != tile->number)
            continue;
        tile->process = process;
        tile->slot = place.slot;
        tile->place = place_pack(place);
        return;
    }
    if (atomic_load(&own->step) != MOVE_ASKED)
        return;
    tile->move = own;
    tile->pieces = 0;
    if (own->mode == MODE_PRECOPY)
        atomic_store(&own->wanted, 1);
    step_to(own, MOVE_ASKED, own->mode == MODE_PRECOPY ? MOVE_TRACKING : MOVE_RESERVED);
}

/* The process does something: it says the next number to another, or hears one. */
static void run_process(struct tile *tile)
{
    struct memory *memory = memory_of(tile);
    uint32_t other = 1 + draw(PROCESSES);
    struct mail mail;
    struct note note;

    if (!world.calm && chance(50) && other != tile->process) {
        note = (struct note){tile->process, memory->sent[other] + 1};
        if (inbox_put(tile->window, other, PORT, tile->process, &note, sizeof(note)) == 0)
            memory->sent[other]++;
    } else if (inbox_take(tile->window, tile->process, PORT, &mail)) {
        memcpy(&note, mail.bytes, sizeof(note));
        REQUIRE(note.from == mail.from && note.from <= PROCESSES && note.number == memory->received[note.from] + 1);
        memory->received[note.from]++;
    }
}

static void step_tile(struct tile *tile)
{
    struct place place;

    if (tile->dead || world.dead[tile->number / EACH])
        return;
    if (!tile->process && tile->move)
        take(tile);
    else if (!tile->process)
        look(tile);
    else if (!tile->frozen && atomic_load(&tile->window->locations[tile->process].end)) {
        place = place_unpack(tile->place);
        place.state = PLACE_ENDED;
        window_commit(tile->window, tile->process, tile->place, place);
        release(tile);
    } else {
        give(tile);
        if (tile->process && !tile->frozen)
            run_process(tile);
    }
}

/* The hosts. */

static void kill_tile(struct tile *tile)
{
    struct tile_record *record = &tile->window->tiles[tile->number];
    pid_t pid;

    tile->dead = true;
    pid = fork();
    if (pid == 0)
        _exit(1);
    record->pid = pid;
    waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED | WNOWAIT);
    tiles_reap(tile->window);
    REQUIRE(!atomic_load(&record->alive));
    record->pid = 0;
}

/* Of what it had sent, some is still delivered. */
static void kill_host(uint32_t host)
{
    world.dead[host] = true;
    for (int some = (int)draw(6); some > 0; some--)
        deliver(host, 0);
    drop_all(host, 0);
    drop_all(0, host);
    world.boards[0].net.links[host].heard = 0;
    for (uint32_t other = 1; host == 0 && other < HOSTS; other++)
        world.boards[other].net.links[0].heard = world.boards[other].net.links[0].answered = 0;
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
    int64_t now = window_now();

    if (world.dead[host])
        return;
    for (uint32_t other = 0; other < HOSTS; other++)
        if (host == 0 ? !world.dead[other] : other == 0 && !world.dead[0])
            board->net.links[other].heard = board->net.links[other].answered = now;
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
        REQUIRE(running <= 1 || window_place(world.boards[0].window, process).state != PLACE_RUNNING);
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
        step_tile(&world.tiles[draw(TILES)]);
    else if (who < 97)
        deliver(from, to);
    else if (!world.calm)
        ask();
    check_owners();
}

static void start_process(uint32_t process, uint32_t tile)
{
    struct board *board = &world.boards[0];
    struct place place = {.state = PLACE_RUNNING, .tile = (uint8_t)tile};
    struct uarea *area;
    uint32_t slot;

    REQUIRE(slots_reserve(board->window, &slot));
    board->window->locations[process].ranks = 1;
    area = window_area(board->window, slot);
    uarea_init(area, process, board->window->xfeatures, board->window->xsize);
    area->text_end = TEXT_END;
    area->rodata_end = RODATA_END;
    area->end = END;
    uarea_add_thread(area, USER_BASE + 0x100, 0, 0);
    memset(window_image(board->window, slot), 0, END);
    place.slot = (uint8_t)slot;
    if (!window_is_here(board->window, tile)) {
        uarea_seal(area);
        transfer_start(&board->transfer, process, tile, area, window_image(board->window, slot));
        place.slot = NO_SLOT;
    }
    window_commit(board->window, process, atomic_load(&board->window->locations[process].word), place);
    directory_announce(&board->directory, process);
}

static void begin_host(uint32_t host)
{
    static struct window *windows[HOSTS];
    struct board *board = &world.boards[host];

    if (!windows[host])
        close(window_create(TILES, 2, &windows[host]));
    board_init(board, windows[host]);
    board->window->first_tile = host * EACH;
    board->window->here = EACH;
    board->net.host = host;
    board->net.hosts = HOSTS;
    for (uint32_t other = 0; other < HOSTS; other++)
        board->net.tiles[other] = EACH;
    memset(board->window->tiles, 0, sizeof(board->window->tiles));
    memset(board->window->locations, 0, sizeof(board->window->locations));
    memset(board->window->moves, 0, sizeof(board->window->moves));
    for (uint32_t process = 0; process < PROCESS_MAX; process++) {
        struct endpoint *endpoint = &board->window->endpoints[process];

        memset((uint8_t *)endpoint + sizeof(endpoint->lock), 0, sizeof(*endpoint) - sizeof(endpoint->lock));
    }
    for (uint32_t tile = 0; tile < TILES; tile++)
        atomic_store(&board->window->tiles[tile].alive, 1);
}

static void forget_host(uint32_t host)
{
    for (uint32_t process = 0; process < PROCESS_MAX; process++) {
        mirror_clear(&world.boards[host].mirror, process);
        record_set_snapshot(&world.boards[host].mirror, process, NULL);
    }
    for (uint32_t other = 0; other < HOSTS; other++)
        drop_all(host, other);
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

    REQUIRE(!moves_is_under_way(&world.boards[0].moves)); /* whoever asked for a move has been answered */
    for (uint32_t process = 1; process <= PROCESSES; process++) {
        uint8_t state = window_place(world.boards[0].window, process).state;

        runners[process] = find_runner(process);
        REQUIRE((state == PLACE_RUNNING) == (runners[process] != NULL));
        REQUIRE(state == PLACE_RUNNING || world.killed);
    }
    for (uint32_t one = 1; one <= PROCESSES; one++)
        for (uint32_t other = 1; other <= PROCESSES; other++)
            if (runners[one] && runners[other])
                REQUIRE(memory_of(runners[one])->sent[other] == memory_of(runners[other])->received[one]);
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
        world.tiles[i] = (struct tile){.number = i, .window = world.boards[i / EACH].window};
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

/* The STATE has been under way for 8 ms, the answer for 1 ms: what is told of that, and that it is a bound if it is one. */
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
    move = &board->window->moves[EACH];
    move->process = 1;
    move->serial = runs.serial;
    move->to = EACH;
    atomic_store(&move->step, MOVE_FROZEN);
    now = window_now();
    move->frozen = now - 10 * MS;
    move->committed = now;
    runs.come = now - 2 * MS;
    departure_runs(&board->mirror, 1, &runs);
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
