/*
 * libFuzzer on the frames that a board takes from another one: hosts.c, transfer.c, mirror.c, state.c, relay.c of
 * native/manycore/board, behind the link.
 *
 *   clang -g -O1 -D_GNU_SOURCE -DWHERRY_TILES_BUILD=1u -fsanitize=fuzzer,address,undefined native/fuzz/fuzz_board.c \
 *         native/manycore/board/{launch,moves,client,names,clock,hello,hosts,mirror,relay,report,state,transfer}.c \
 *         native/manycore/tests/unconnected.c native/manycore/{uarea,crc,cpu,elf,window,inbox,portal,sync,movegraph}.c \
 *         -lnettle -lm -o fuzz_board && ./fuzz_board -max_len=8192
 *
 * The first byte says whether the board leads. Then frames, one after the other: kind, process, host, flags, length
 * (u16), payload. By its flags a frame is as long as its kind wants it, and a state gets the checksum that it should
 * have. The invariant: nothing is read or written outside of the window, and what is sent fits into a frame.
 */
#include <stdlib.h>
#include <string.h>

#include "../manycore/board/state.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

enum { HEADER = 6, HOSTS = 3, EACH = 2, WHOLE = 1, SEALED = 2 };

static struct board board;
static uint8_t payload[FRAME_MAX];

static void require(int condition)
{
    if (!condition)
        abort();
}

void link_send_lent(struct link *link, enum frame_kind kind, uint32_t process, uint32_t host, const void *own,
                    size_t own_size, const struct iovec *lent, size_t lent_count)
{
    volatile uint8_t sum = 0;
    size_t size = own_size;

    (void)process, (void)host;
    require(link >= board.net.links && link < board.net.links + HOST_MAX && kind < FRAME_KINDS);
    for (size_t i = 0; i < own_size; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)own)[i]);
    for (size_t i = 0; i < lent_count; i++) {
        size += lent[i].iov_len;
        if (lent[i].iov_len)
            sum = (uint8_t)(sum + *(uint8_t *)lent[i].iov_base + ((uint8_t *)lent[i].iov_base)[lent[i].iov_len - 1]);
    }
    require(size <= FRAME_MAX);
}

void link_send_parts(struct link *link, enum frame_kind kind, uint32_t process, uint32_t host, const void *one,
                     size_t one_size, const void *two, size_t two_size)
{
    struct iovec part = {(void *)(uintptr_t)two, two_size};

    link_send_lent(link, kind, process, host, one, one_size, &part, 1);
}

static void make_board(bool leads)
{
    static struct window *window;

    if (!window)
        require(window_create(HOSTS * EACH, 2, &window) >= 0);
    for (uint32_t process = 0; board.window && process < PROCESS_MAX; process++) {
        relay_clear(&board, process);
        free(board.net.given[process]);
        free(board.net.arriving[process]);
        free(board.outputs[process].bytes);
    }
    memset(&board, 0, sizeof board);
    board.window = window;
    board.event_fd = -1;
    board.net.host = leads ? 0 : 1;
    board.net.hosts = HOSTS;
    board.net.listen_fd = -1;
    for (size_t i = 0; i < sizeof board.clients / sizeof *board.clients; i++)
        board.clients[i].fd = -1;
    for (uint32_t host = 0; host < HOSTS; host++)
        board.net.tiles[host] = EACH;
    window->first_tile = board.net.host * EACH;
    window->here = EACH;
    memset(window->tiles, 0, sizeof window->tiles);
    memset(window->locations, 0, sizeof window->locations);
    memset(window->moves, 0, sizeof window->moves);
    for (uint32_t process = 0; process < PROCESS_MAX; process++)
        endpoint_clear(window, process);
    for (uint32_t tile = 0; tile < HOSTS * EACH; tile++)
        atomic_store(&window->tiles[tile].alive, 1);
}

/* What a frame of the kind has, at least. */
static size_t size_of(uint32_t kind)
{
    static const size_t sizes[FRAME_KINDS] = {
        [FRAME_PARCEL] = sizeof(struct parcel),   [FRAME_LOCATION] = sizeof(struct news),
        [FRAME_ENDED] = sizeof(struct news),      [FRAME_START] = sizeof(struct state),
        [FRAME_MOVE] = sizeof(struct order),      [FRAME_GIVE] = sizeof(struct order),
        [FRAME_OFFER] = sizeof(struct offer),     [FRAME_WANT] = sizeof(struct want),
        [FRAME_PAGES] = sizeof(struct pages),     [FRAME_PIECE] = sizeof(struct piece) + PAGE_SIZE,
        [FRAME_STATE] = sizeof(struct state),     [FRAME_REFUSED] = sizeof(struct order),
        [FRAME_RUNS] = sizeof(struct runs),       [FRAME_ABORT] = sizeof(struct order),
        [FRAME_MOVED] = sizeof(struct cost),      [FRAME_WISH] = sizeof(struct order),
        [FRAME_ANSWER] = sizeof(struct order),    [FRAME_END] = sizeof(struct order),
        [FRAME_REPORT] = sizeof(struct report),
    };

    return sizes[kind];
}

static void seal(size_t size)
{
    struct state state;

    if (size < sizeof state)
        return;
    memcpy(&state, payload, sizeof state);
    if (state.parcels_size > size - sizeof state)
        return;
    state_seal(&state, payload + sizeof state);
    memcpy(payload, &state, sizeof state);
}

static void hand_on(const uint8_t *header, const uint8_t *bytes, size_t count)
{
    uint32_t from = board.net.host ? 0 : 1 + header[3] / 4 % (HOSTS - 1);
    struct frame_head head = {
        .kind = header[0] % FRAME_KINDS,
        .process = header[1] % PROCESS_MAX,
        .host = header[2], /* as the link takes it */
    };
    uint8_t *exact;

    memset(payload, 0, sizeof payload);
    memcpy(payload, bytes, count);
    if (header[3] & WHOLE && size_of(head.kind) > count)
        count = size_of(head.kind);
    if (header[3] & SEALED)
        seal(count);
    head.size = (uint32_t)count;
    exact = malloc(count ? count : 1); /* so that a byte too much is found */
    require(exact != NULL);
    memcpy(exact, payload, count);
    net_handle(&board, from, &head, exact);
    mirror_serve(&board);
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
