/*
 * The STATE of a process between hosts (board/migration/process_state.h): a broken one is refused on arrival, whatever
 * its checksum; and a process with more messages than a frame holds does not set out.
 */
#include "../board/board.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

#define PROCESS 1
#define OTHER 2
#define PORT 3
#define HERE 1 /* our only tile; 0 is the leader's */
#define SLOT 0
#define FREE_SLOT 5
#define END 0x10000

static struct board board;
static struct buffer sent; /* a STATE */
static struct process_state spoiled;
static uint32_t last_kind, frames;
static int said_meanwhile; /* messages that another tile puts into its port as soon as there is room */

/* The channel: the frame sent last. */

void channel_send_iov(struct channel *channel, enum frame_kind kind, uint32_t process, uint32_t host, const void *own,
                      size_t own_size, const struct iovec *iov, size_t iov_count)
{
    (void)channel, (void)process, (void)host, (void)own, (void)own_size, (void)iov, (void)iov_count;
    last_kind = kind;
    frames++;
    if (said_meanwhile && said_meanwhile--)
        CHECK(mailbox_put(board.shared, OTHER, PORT, PROCESS, "x", 1) == 0);
}

void channel_send_parts(struct channel *channel, enum frame_kind kind, uint32_t process, uint32_t host, const void *one,
                        size_t one_size, const void *two, size_t two_size)
{
    (void)two, (void)two_size;
    channel_send_iov(channel, kind, process, host, one, one_size, NULL, 0);
}

static struct operation *operation(void)
{
    return &board.shared->endpoints[PROCESS].operations[0];
}

/* A process of ours with a message that it has not read, and an operation of each kind under way. */
static void make_process(void)
{
    struct user_area *area = shared_area(board.shared, SLOT);
    struct place place = {.state = PLACE_RUNNING, .slot = SLOT, .tile = HERE};
    uint64_t before = atomic_load(&board.shared->locations[PROCESS].word);

    endpoint_clear(board.shared, PROCESS);
    user_area_init(area, PROCESS, board.shared->xfeatures, board.shared->xsize);
    area->text_end = 0x2000;
    area->rodata_end = 0x3000;
    area->end = END;
    user_area_add_thread(area, USER_BASE + 0x100, 0, 0);
    user_area_seal(area);
    CHECK(shared_commit(board.shared, PROCESS, before, place));
    CHECK(mailbox_put(board.shared, PROCESS, PORT, OTHER, "hello", 5) == 0);
    for (uint8_t kind = 0; kind <= START_PORTAL_RECEIVE; kind++)
        operation()[kind] = (struct operation){
            .kind = kind, .state = OPERATION_PENDING, .port = 1, .process = OTHER, .offset = 0x4000, .size = 100,
        };
}

static void append(const void *bytes, size_t size)
{
    CHECK(sent.size + size <= sent.room);
    memcpy(sent.bytes + sent.size, bytes, size);
    sent.size += size;
}

static void capture(void)
{
    struct iovec parts[STATE_PARTS];
    struct process_state state = {.serial = 1, .to = HERE, .mode = MODE_DIRECT};
    struct buffer buffer = {NULL, 0, 0};
    size_t count;

    free(state_capture(&board.router, PROCESS, &state, &buffer));
    sent.size = 0;
    append(buffer.bytes, buffer.size);
    free(buffer.bytes);
    count = state_list_memory(&state, shared_area(board.shared, SLOT), shared_image(board.shared, SLOT), parts);
    for (size_t i = 0; i < count; i++)
        append(parts[i].iov_base, parts[i].iov_len);
}

static const char *unpack(void)
{
    const uint8_t *parcels;

    return state_unpack(board.shared, PROCESS, FREE_SLOT, NULL, sent.bytes, sent.size, &spoiled, &parcels);
}

static void test_every_bit(void)
{
    size_t count;

    make_process();
    capture();
    CHECK(unpack() == NULL && spoiled.parcels_size == sizeof(struct parcel) + 5);
    count = sizeof(struct process_state) + spoiled.parcels_size;
    for (size_t bit = 0; bit < count * 8; bit++) {
        sent.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK(unpack() != NULL);
        sent.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    CHECK(unpack() == NULL);
}

/* Faults that a checksum does not find, because they were there before it was made. */
#define IS_TAKEN(change)        \
    (make_process(), (void)(change), capture(), unpack() == NULL)

static void test_operations(void)
{
    CHECK(IS_TAKEN(operation()[0].size = MAIL_SIZE));
    CHECK(!IS_TAKEN(operation()[0].size = MAIL_SIZE + 1)); /* it would be copied into a slot of that many bytes */
    CHECK(!IS_TAKEN(operation()[0].size = 0));
    CHECK(!IS_TAKEN(operation()[0].kind = START_PORTAL_RECEIVE + 1));
    CHECK(!IS_TAKEN(operation()[0].state = OPERATION_DONE + 1));
    CHECK(!IS_TAKEN(operation()[0].process = PROCESS_MAX));
    CHECK(!IS_TAKEN(operation()[0].port = PORT_MAX));
    CHECK(!IS_TAKEN(operation()[2].port = PORTAL_MAX));
    CHECK(!IS_TAKEN(operation()[2].done = 100)); /* then it would be done */
    CHECK(!IS_TAKEN(operation()[2].done = 101));
    CHECK(IS_TAKEN(operation()[2].size = END - 0x4000));
    CHECK(!IS_TAKEN(operation()[2].size = END - 0x4000 + 1));
    CHECK(!IS_TAKEN(operation()[2].offset = END + 1));
    CHECK(IS_TAKEN(operation()[2].offset = ARGUMENTS_OFFSET));
    CHECK(IS_TAKEN(operation()[2].offset = 0x2000));
    CHECK(!IS_TAKEN(operation()[3].offset = 0x2000)); /* receives do not write there */
    CHECK(!IS_TAKEN(operation()[3].offset = USER_SIZE - 50));
    CHECK(IS_TAKEN(operation()[3].state = OPERATION_FREE));
}

static void test_a_reason_without_an_end(void)
{
    struct order order = {.mode = 3};
    struct frame_head head = {.size = sizeof(order), .kind = FRAME_END, .process = PROCESS};

    make_process();
    memset(order.why, 'x', sizeof(order.why));
    net_handle(&board.net, 0, &head, (const uint8_t *)&order);
    CHECK(strlen(board.shared->locations[PROCESS].why) == REASON_SIZE - 1);
    atomic_store(&board.shared->locations[PROCESS].end, 0);
}

static void ask_for_it(uint32_t answer)
{
    struct order order = {.serial = 7, .to = 0, .mode = MODE_DIRECT};
    struct frame_head head = {.size = sizeof(order), .kind = FRAME_MIGRATE, .process = PROCESS};

    frames = 0;
    net_handle(&board.net, 0, &head, (const uint8_t *)&order);
    CHECK(frames == 1 && last_kind == answer);
}

static void keep(size_t count)
{
    static const uint8_t page[PAGE_SIZE];
    struct parcel parcel = {PARCEL_PIECE, OTHER, 0, 0, 0, PAGE_SIZE, 0};

    while (count--)
        router_keep(&board.router.pending[PROCESS], &parcel, page);
}

/* A channel takes frames of at most FRAME_MAX; a longer one would break it for ever, with the process frozen. */
static void test_too_much_to_send(void)
{
    struct move *move = &board.shared->moves[0];

    make_process();
    board.router.credit[OTHER] = FLUSHED + 1; /* it reads nothing, and a move would send it more */
    ask_for_it(FRAME_REFUSED);
    board.router.credit[OTHER] = FLUSHED;
    keep(FRAME_MAX / PAGE_SIZE);
    ask_for_it(FRAME_REFUSED);
    router_forget(&board.router.pending[PROCESS]);
    ask_for_it(FRAME_OFFER);

    atomic_store(&move->step, MOVE_FROZEN);
    keep(FRAME_MAX / PAGE_SIZE); /* it came after that */
    frames = 0;
    proxy_serve(&board.proxy);
    CHECK(frames == 0 && atomic_load(&move->step) == MOVE_ABORTED && !board.proxy.snapshots[PROCESS]);
    router_forget(&board.router.pending[PROCESS]);

    atomic_store(&move->step, MOVE_FROZEN);
    proxy_serve(&board.proxy);
    CHECK(frames == 1 && last_kind == FRAME_STATE);
}

/* A tile that sends messages without end keeps nobody frozen: all that were there at the beginning are sent. */
static void test_a_flush_ends(void)
{
    struct place there = {.state = PLACE_RUNNING, .slot = NO_SLOT, .tile = 0};

    CHECK(shared_commit(board.shared, OTHER, atomic_load(&board.shared->locations[OTHER].word), there));
    for (int i = 0; i < MAIL_DEPTH; i++)
        CHECK(mailbox_put(board.shared, OTHER, PORT, PROCESS, "x", 1) == 0);
    said_meanwhile = 1000;
    frames = 0;
    router_flush(&board.router);
    CHECK(frames == MAIL_DEPTH);
    said_meanwhile = 0;
}

/* Whatever has changed in the sources: the layout of the shared memory is valid for one build only. */
static void test_another_build(void)
{
    struct shared_memory *shared;

    CHECK(shared_open(SHARED_MEMORY_FD, &shared) == 0);
    board.shared->build ^= 1;
    CHECK(shared_open(SHARED_MEMORY_FD, &shared) == -EPROTO);
    board.shared->build ^= 1;
}

int main(void)
{
    struct shared_memory *shared;
    int fd = shared_create(2, 2, &shared);

    CHECK(fd >= 0 && dup2(fd, SHARED_MEMORY_FD) == SHARED_MEMORY_FD);
    board_init(&board, shared);
    board.net.host = 1;
    board.net.hosts = 2;
    board.net.tiles[0] = board.net.tiles[1] = 1;
    board.shared->first_tile = HERE;
    board.shared->here = 1;
    atomic_store(&board.shared->tiles[0].alive, 1);
    atomic_store(&board.shared->tiles[HERE].alive, 1);
    sent.room = FRAME_MAX;
    sent.bytes = malloc(sent.room);
    CHECK(sent.bytes);
    test_another_build();
    test_every_bit();
    test_operations();
    test_a_reason_without_an_end();
    test_too_much_to_send();
    test_a_flush_ends();
    free(board.proxy.snapshots[PROCESS]);
    free(sent.bytes);
    return 0;
}
