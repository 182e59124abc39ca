/*
 * libFuzzer on the frames that a board receives from other boards: all of tiles/native/board behind the channel.
 *
 *   clang -g -O1 -D_GNU_SOURCE -DWHERRY_TILES_BUILD=1u -fsanitize=fuzzer,address,undefined tiles/native/fuzz/fuzz_board.c \
 *         $(find tiles/native/board -name '*.c' ! -name main.c ! -name channel.c) \
 *         tiles/native/tests/fake_channel.c $(find tiles/native/shared -name '*.c') \
 *         -lnettle -o fuzz_board && ./fuzz_board -max_len=8192
 *
 * The first byte sets whether the board leads. Then frames, one after the other: kind, process, host, flags, length
 * (u16), payload. By its flags a frame is as long as its kind requires, a state has the right checksum, and the board
 * has a whole turn after the frame. The invariant: nothing is read or written outside of the shared memory, and a
 * message sent fits into a frame.
 */
#include <stdlib.h>
#include <string.h>

#include "../board/board.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

enum { HEADER = 6, HOSTS = 3, EACH = 2, WHOLE = 1, SEALED = 2, TURN = 8 };

static struct board board;
static uint8_t payload[FRAME_MAX];

static void require(int condition)
{
    if (!condition)
        abort();
}

void channel_send_iov(struct channel *channel, enum frame_kind kind, uint32_t process, uint32_t host, const void *own,
                      size_t own_size, const struct iovec *iov, size_t iov_count)
{
    volatile uint8_t sum = 0;
    size_t size = own_size;

    (void)process, (void)host;
    require(channel >= board.net.channels && channel < board.net.channels + HOST_MAX && kind < FRAME_KINDS);
    for (size_t i = 0; i < own_size; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)own)[i]);
    for (size_t i = 0; i < iov_count; i++) {
        size += iov[i].iov_len;
        if (iov[i].iov_len)
            sum = (uint8_t)(sum + *(uint8_t *)iov[i].iov_base + ((uint8_t *)iov[i].iov_base)[iov[i].iov_len - 1]);
    }
    require(size <= FRAME_MAX);
}

void channel_send_parts(struct channel *channel, enum frame_kind kind, uint32_t process, uint32_t host, const void *one,
                        size_t one_size, const void *two, size_t two_size)
{
    struct iovec part = {(void *)(uintptr_t)two, two_size};

    channel_send_iov(channel, kind, process, host, one, one_size, &part, 1);
}

static void clear_window(struct shared_memory *shared)
{
    memset(shared->tiles, 0, sizeof shared->tiles);
    memset(shared->locations, 0, sizeof shared->locations);
    memset(shared->moves, 0, sizeof shared->moves);
    for (uint32_t process = 0; process < PROCESS_MAX; process++)
        endpoint_clear(shared, process);
    for (uint32_t tile = 0; tile < HOSTS * EACH; tile++)
        atomic_store(&shared->tiles[tile].alive, 1);
}

static void clear_board(void)
{
    for (uint32_t process = 0; board.shared && process < PROCESS_MAX; process++) {
        board_clear_process(&board, process);
        record_set_snapshot(&board.proxy, process, NULL);
        free(board.events.outputs[process].bytes);
    }
    memset(&board, 0, sizeof board);
}

static void make_board(bool leads)
{
    static struct shared_memory *shared;

    if (!shared)
        require(shared_create(HOSTS * EACH, 2, &shared) >= 0);
    clear_board();
    clear_window(shared);
    board_init(&board, shared);
    board.net.host = leads ? 0 : 1;
    board.net.hosts = HOSTS;
    for (uint32_t host = 0; host < HOSTS; host++)
        board.net.tiles[host] = EACH;
    shared->first_tile = board.net.host * EACH;
    shared->here = EACH;
}

/* The least size of a frame of the kind. */
static size_t size_of(uint32_t kind)
{
    static const size_t sizes[FRAME_KINDS] = {
        [FRAME_PARCEL] = sizeof(struct parcel),      [FRAME_PROCESS] = sizeof(struct process_info),
        [FRAME_ENDED] = sizeof(struct process_info), [FRAME_START] = sizeof(struct process_state),
        [FRAME_MOVE] = sizeof(struct order),         [FRAME_MIGRATE] = sizeof(struct order),
        [FRAME_OFFER] = sizeof(struct offer),        [FRAME_WANT] = sizeof(struct want),
        [FRAME_PAGES] = sizeof(struct pages),        [FRAME_PIECE] = sizeof(struct piece) + PAGE_SIZE,
        [FRAME_STATE] = sizeof(struct process_state),        [FRAME_REFUSED] = sizeof(struct order),
        [FRAME_RUNS] = sizeof(struct runs),          [FRAME_ABORT] = sizeof(struct order),
        [FRAME_MOVED] = sizeof(struct cost),         [FRAME_WISH] = sizeof(struct order),
        [FRAME_ANSWER] = sizeof(struct order),       [FRAME_END] = sizeof(struct order),
        [FRAME_REPORT] = sizeof(struct report),
    };

    return sizes[kind];
}

static void seal(size_t size)
{
    struct process_state state;

    if (size < sizeof state)
        return;
    memcpy(&state, payload, sizeof state);
    if (state.parcels_size > size - sizeof state)
        return;
    state_seal(&state, payload + sizeof state);
    memcpy(payload, &state, sizeof state);
}

/* The channels are connected and not silent, so the turn is about the board's parts and not about connections. */
static void serve(void)
{
    for (uint32_t host = 0; host < HOSTS; host++) {
        board.net.channels[host].fd = 0; /* of a channel that fake_channel.c neither reads nor closes */
        board.net.channels[host].heard = board.net.channels[host].answered = shared_now();
    }
    board_serve(&board, NULL, 0);
}

static void hand_on(const uint8_t *header, const uint8_t *bytes, size_t count)
{
    uint32_t from = board.net.host ? 0 : 1 + header[3] / 4 % (HOSTS - 1);
    struct frame_head head = {
        .kind = header[0] % FRAME_KINDS,
        .process = header[1] % PROCESS_MAX,
        .host = header[2], /* as the channel takes it */
    };
    uint8_t *exact;

    memset(payload, 0, sizeof payload);
    memcpy(payload, bytes, count);
    if (header[3] & WHOLE && size_of(head.kind) > count)
        count = size_of(head.kind);
    if (header[3] & SEALED)
        seal(count);
    head.size = (uint32_t)count;
    exact = malloc(count ? count : 1); /* so that an overrun of one byte is found */
    require(exact != NULL);
    memcpy(exact, payload, count);
    net_handle(&board.net, from, &head, exact);
    if (header[3] & TURN)
        serve();
    else
        proxy_serve(&board.proxy);
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count == 0)
        return 0;
    make_board(bytes[0] & 1);
    for (bytes++, count--; count >= HEADER;) {
        size_t size = (size_t)bytes[4] << 8 | bytes[5];
        const uint8_t *header = bytes;

        bytes += HEADER, count -= HEADER;
        size = size < count ? size : count;
        hand_on(header, bytes, size);
        bytes += size, count -= size;
    }
    return 0;
}
