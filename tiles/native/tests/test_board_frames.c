/*
 * Frames from other boards: a leader and a follower are sent frames that are right, nearly right and
 * nonsense, the processes in them sealed anew, in any order. No frame may do harm; the build with sanitizers
 * finds unseen harm, too.
 *
 *   test_frames [SEEDS]
 */
#include "../board/board.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

#define FRAMES 4000
#define PAYLOAD_MAX (FRAME_MAX / 16)
#define END 0x5000

static struct {
    uint64_t random, number, received;
    struct board board;
    int peer;
    uint32_t serial, arrived, refused;
    uint8_t payload[PAYLOAD_MAX];
} world;

static uint32_t draw(uint32_t below)
{
    world.random ^= world.random << 13;
    world.random ^= world.random >> 7;
    world.random ^= world.random << 17;
    return (uint32_t)(world.random >> 33) % below;
}

static uint32_t other_host(void)
{
    return !world.board.net.host;
}

static struct channel *channel_of(void)
{
    return &world.board.net.channels[world.board.net.host == 0 ? 1 : 0];
}

static void connect_again(void)
{
    int ends[2];

    if (world.peer >= 0)
        close(world.peer);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    world.peer = ends[1];
    channel_connect(channel_of(), ends[0], channel_of()->sent);
    world.number = channel_of()->received;
}

static void handle(void *context, struct channel *channel, const struct frame_head *head, const uint8_t *payload)
{
    (void)channel, (void)context;
    net_handle(&world.board.net, world.board.net.host == 0 ? 1 : 0, head, payload);
}

static void say(uint32_t kind, uint32_t process, const void *payload, size_t size)
{
    struct frame_head head = {(uint32_t)size, (uint16_t)kind, (uint8_t)process, (uint8_t)draw(3), ++world.number,
                              channel_of()->sent};
    uint8_t rest[4096];

    if (draw(400) == 0)
        ((uint8_t *)&head)[draw(sizeof(head))] ^= (uint8_t)(1 << draw(8));
    CHECK(send(world.peer, &head, sizeof(head), MSG_NOSIGNAL) == sizeof(head));
    for (size_t at = 0; at < size && channel_of()->fd >= 0; ) { /* by parts: the socket does not hold all of it */
        size_t some = size - at < 65536 ? size - at : 65536;

        CHECK(send(world.peer, (const uint8_t *)payload + at, some, MSG_NOSIGNAL) == (ssize_t)some);
        channel_read(channel_of(), handle, &world.board);
        at += some;
    }
    channel_read(channel_of(), handle, &world.board);
    while (recv(world.peer, rest, sizeof(rest), MSG_DONTWAIT) > 0)
        ;
    if (channel_of()->fd < 0 || head.size != size)
        connect_again();
}

/* A process as its owner would send it; spoiled at some place or none, then sealed. */
static size_t make_state(uint32_t process, uint32_t serial, uint32_t mode)
{
    static struct user_area area;
    static uint8_t image[USER_SIZE];
    struct parcel parcel = {PARCEL_MAIL, 2, 3, 255, 0, 5, 0};
    struct iovec parts[STATE_PARTS];
    struct process_state *state = (struct process_state *)world.payload;
    size_t size = sizeof(*state), count;
    uint8_t *at;

    user_area_init(&area, process, world.board.shared->xfeatures, world.board.shared->xsize);
    area.text_end = 0x2000;
    area.rodata_end = 0x3000;
    area.end = END;
    user_area_add_thread(&area, USER_BASE + 0x100, 0, 0);
    memset(state, 0, sizeof(*state));
    state->serial = serial;
    state->to = world.board.net.host;
    state->mode = mode;
    state->written[0] = draw(32);
    state->facts.state = PLACE_RUNNING;
    state->facts.ranks = 1;
    for (uint32_t i = 0; i < OPERATION_MAX; i++)
        state->operations[i] = (struct operation){.kind = (uint8_t)draw(4), .state = (uint8_t)draw(3), .port = 1,
                                                  .process = draw(4), .offset = 0x3000 + draw(0x1000), .size = 1 + draw(128)};
    state->parcels_size = sizeof(parcel) + parcel.size;
    at = world.payload + size;
    memcpy(at, &parcel, sizeof(parcel));
    memset(at + sizeof(parcel), 'x', parcel.size);
    size += state->parcels_size;
    for (uint32_t times = draw(3); times > 0; times--) {
        at[draw(sizeof(parcel) + parcel.size)] ^= (uint8_t)(draw(4) ? 0 : 1 << draw(8));
        ((uint8_t *)state)[draw(sizeof(*state))] ^= (uint8_t)(draw(4) ? 0 : 1 << draw(8));
        ((uint8_t *)&area)[draw(2 * PAGE_SIZE)] ^= (uint8_t)(draw(4) ? 0 : 1 << draw(8));
    }
    area.used &= (1u << THREAD_MAX) - 1; /* the threads that the sender lists have to be there */
    area.end = area.end % ARGUMENTS_OFFSET;
    user_area_seal(&area);
    count = state_list_memory(state, &area, image, parts);
    for (size_t i = 0; i < count; i++) {
        if (size + parts[i].iov_len > PAYLOAD_MAX)
            break;
        memcpy(world.payload + size, parts[i].iov_base, parts[i].iov_len);
        size += parts[i].iov_len;
    }
    if (state->parcels_size <= PAYLOAD_MAX - sizeof(*state))
        state_seal(state, world.payload + sizeof(*state));
    return draw(20) ? size : draw((uint32_t)size);
}

static size_t make_noise(void)
{
    static const uint32_t sizes[] = {0, 1, 4, sizeof(struct piece) + PAGE_SIZE, sizeof(struct parcel), sizeof(struct parcel) + 5,
                                     sizeof(struct order), sizeof(struct offer), sizeof(struct want), sizeof(struct pages),
                                     sizeof(struct process_info), sizeof(struct runs), sizeof(struct cost), sizeof(struct report),
                                     sizeof(struct parcel) + PAGE_SIZE};
    uint32_t size = sizes[draw(sizeof(sizes) / sizeof(*sizes))];

    for (uint32_t i = 0; i < size; i++)
        world.payload[i] = (uint8_t)(draw(3) ? draw(4) : draw(256));
    if (size >= 4 && draw(2))
        memcpy(world.payload, &world.serial, 4);
    if (size >= sizeof(struct parcel) && draw(2))
        memcpy(world.payload + offsetof(struct parcel, size), &(uint32_t){size - sizeof(struct parcel)}, 4);
    return size;
}

static void step_tile(void)
{
    struct board *board = &world.board;
    uint32_t here = board->net.host;
    struct move *move = &board->shared->moves[here];
    struct place place = {.state = PLACE_RUNNING, .slot = (uint8_t)move->slot, .tile = (uint8_t)here};
    uint32_t step = atomic_load(&move->step);

    if (step == MOVE_ASKED)
        atomic_store(&move->step, MOVE_RESERVED);
    else if (step == MOVE_RESERVED && draw(8) == 0)
        atomic_store(&move->step, MOVE_ABORTED);
    else if (step == MOVE_FROZEN && shared_commit(board->shared, move->process, move->place, place)) {
        move->copied = move->committed = shared_now();
        atomic_store(&move->first, move->committed);
        atomic_store(&move->all, move->committed);
        atomic_store(&move->step, MOVE_DONE);
        world.arrived++;
    } else if (step == MOVE_FROZEN)
        atomic_store(&move->step, MOVE_ABORTED);
    for (uint32_t process = 1; process < 4; process++) { /* a process that runs here ends, and makes room */
        uint64_t word = atomic_load(&board->shared->locations[process].word);
        struct place now = place_unpack(word);

        if (now.state == PLACE_RUNNING && now.tile == here && now.slot < TILE_MAX && draw(4) == 0) {
            now.state = PLACE_ENDED;
            shared_commit(board->shared, process, word, now);
        }
    }
    world.refused += step == MOVE_ABORTED;
}

/* The leader asks for a move of the other host's process; when another is not over, that is refused. */
static void ask_for_it(uint32_t process, uint32_t mode)
{
    struct board *board = &world.board;
    struct order order = {.to = 0};
    char why[REASON_SIZE];

    if (shared_place(board->shared, process).state != PLACE_RUNNING)
        shared_commit(board->shared, process, atomic_load(&board->shared->locations[process].word),
                      (struct place){.state = PLACE_RUNNING, .slot = NO_SLOT, .tile = 1});
    if (moves_ask(&board->moves, process, 0, mode, why, sizeof(why)) == 0)
        return;
    for (uint32_t other = 1; other < 4; other++) {
        order.serial = board->coordinator.coordinated[other].serial;
        say(FRAME_REFUSED, other, &order, sizeof(order));
    }
}

static void step(void)
{
    static const uint32_t modes[] = {MODE_FAITHFUL, MODE_DIRECT, MODE_PRECOPY};
    struct board *board = &world.board;
    uint32_t process = 1 + draw(3), mode = modes[draw(3)];
    struct offer offer = {++world.serial, other_host(), board->net.host, mode, 0x2000, 0x3000};

    switch (draw(5)) {
    case 0: /* a move to here, as it should be; the leader has to have asked for it */
        if (board->net.host == 0)
            ask_for_it(process, mode);
        offer.serial = world.serial = board->net.host == 0 ? board->coordinator.coordinated[process].serial : world.serial;
        say(FRAME_OFFER, process, &offer, sizeof(offer));
        step_tile();
        proxy_serve(&board->proxy); /* the move alone: nothing else ends or begins before the STATE */
        router_serve(&board->router);
        directory_serve(&board->directory);
        say(FRAME_STATE, process, world.payload, make_state(process, offer.serial, mode));
        break;
    case 1:
        say(FRAME_START, process, world.payload, make_state(process, 0, MODE_DIRECT));
        break;
    default:
        say(1 + draw(FRAME_KINDS - 1), draw(20) ? draw(4) : draw(256), world.payload, make_noise());
    }
    step_tile();
    channel_of()->heard = channel_of()->answered = shared_now();
    board_serve(board, NULL, 0);
    board->net.stopping = board->net.leader_lost = board->net.gone[1] = false;
}

static void begin(uint32_t host)
{
    static struct shared_memory *windows[2];
    struct board *board = &world.board;

    if (!windows[host])
        close(shared_create(2, 2, &windows[host]));
    board_init(board, windows[host]);
    board->shared->first_tile = host;
    board->shared->here = 1;
    board->net.host = host;
    board->net.hosts = 2;
    board->net.tiles[0] = board->net.tiles[1] = 1;
    atomic_store(&board->shared->tiles[0].alive, 1);
    atomic_store(&board->shared->tiles[1].alive, 1);
    CHECK(channel_start(&board->net.channels[0]) == 0 && channel_start(&board->net.channels[1]) == 0);
    connect_again();
}

static void end(void)
{
    struct board *board = &world.board;

    for (uint32_t process = 0; process < PROCESS_MAX; process++) {
        proxy_clear(&board->proxy, process);
        record_set_snapshot(&board->proxy, process, NULL);
        free(board->events.outputs[process].bytes);
    }
    for (int host = 0; host < 2; host++) {
        board->net.channels[host].received = UINT64_MAX;
        channel_connect(&board->net.channels[host], -1, UINT64_MAX); /* all has come: nothing is kept */
        free(board->net.channels[host].in);
    }
    close(world.peer);
}

int main(int argc, char **argv)
{
    uint64_t seeds = argc > 1 ? strtoul(argv[1], NULL, 10) : 4;
    uint32_t arrived[2] = {0}, refused[2] = {0};

    for (uint64_t seed = 1; seed <= seeds; seed++)
        for (uint32_t host = 0; host < 2; host++) {
            memset(&world, 0, sizeof(world));
            world.random = seed * 0x9e3779b97f4a7c15u + host;
            world.peer = -1;
            begin(host);
            for (int i = 0; i < FRAMES; i++)
                step();
            end();
            arrived[host] += world.arrived;
            refused[host] += world.refused;
        }
    printf("a leader: %u came, %u were called off; a follower: %u, %u\n", arrived[0], refused[0], arrived[1],
           refused[1]);
    /* it was about something */
    CHECK(arrived[0] > seeds && arrived[1] > seeds && refused[0] > seeds && refused[1] > seeds);
    return 0;
}
