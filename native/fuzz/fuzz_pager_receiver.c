/*
 * libFuzzer on the streams of a node's memory, as wherry-pager receive reads them (pager/stream.h, pager/receiver.h).
 *
 *   clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined native/fuzz/fuzz_pager_receiver.c \
 *         native/pager/{receiver,cache,fetch,stream,compress,frame_seal}.c -lisal -lzstd -lcrypto -o fuzz_pager_receiver
 *   ./fuzz_pager_receiver -max_len=512
 *
 * The first byte is the number of connections, whether the rest goes to them as it is, whether frames are sealed, and
 * whether some pages come after the last pass. Else each six bytes are a frame with the right checksum and sequence;
 * each process is on one connection only, as no page may come twice. The invariants: streams that keep to the rules end
 * with the last pass, and the cache has the last contents of every page and no other page; a stream with one changed bit
 * never ends with the last pass; compressed pages that may be none (the rest of the input, as it is) harm nobody; nothing
 * waits for ever.
 */
#include <errno.h>
#include <isa-l/crc.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../pager/receiver.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

enum {
    CONNECTIONS = 3,
    PROCESSES = 2, /* on each connection */
    PAGES = 1536,  /* of a process: in four chunks */
    FRAMES = 64,
    AT_ONCE = 3,
    KINDS = 7,
    IS_RAW = 4, IS_SEALED = 8, IS_LATE = 16,
    OP = 6,
    PATIENCE_MS = 20,
};

static const uint64_t BASE = UINT64_C(0x7f0000000000) + CHUNK - 4 * STREAM_PAGE;

struct page {
    uint8_t byte; /* 0: none */
    unsigned round;
};

struct peer {
    int fd;
    uint32_t sent;
    unsigned round; /* 1, 2, … */
    int is_damaged, is_hostile;
    struct frame_seal *seal;
};

static const uint8_t KEY[FRAME_KEY] = "a key that nobody else has";
static struct packer *packer;
static struct page pages[CONNECTIONS * PROCESSES][PAGES];
static struct peer peers[CONNECTIONS];
static unsigned peer_count;
static struct receiver *receiver;
static struct fetch fetch;

static void require(int condition)
{
    if (!condition)
        abort();
}

/* A receiver that has failed reads no more. */
static void put(struct peer *peer, const uint8_t *bytes, size_t count)
{
    while (count) {
        struct pollfd look = {.fd = peer->fd, .events = POLLOUT};
        ssize_t done = send(peer->fd, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);
        struct receiver_news news;

        if (done > 0) {
            bytes += done, count -= (size_t)done;
            continue;
        }
        receiver_news(receiver, &news);
        if (news.failure || (done < 0 && errno != EAGAIN))
            return;
        poll(&look, 1, PATIENCE_MS);
    }
}

static void put_frame(struct peer *peer, struct stream_frame frame, const uint8_t *payload, int flipped)
{
    static uint8_t sent[AT_ONCE * STREAM_PAGE];
    uint8_t header[SEALED_HEADER + FRAME_TAG], plain[STREAM_HEADER];
    size_t size = STREAM_HEADER;
    struct stream_frame back;

    frame.sequence = peer->sent++;
    frame.crc = frame.length ? ~crc32_iscsi((unsigned char *)(uintptr_t)payload, (int)frame.length, ~0U) : 0;
    stream_encode(&frame, header);
    require(!stream_decode(header, &back) && !memcmp(&back, &frame, sizeof(back)));
    if (frame.length)
        memcpy(sent, payload, frame.length);
    if (peer->seal) {
        size = frame.length ? SEALED_HEADER + FRAME_TAG : SEALED_HEADER;
        memcpy(plain, header, sizeof(plain));
        require(!frame_seal_close(peer->seal, plain, header, sent, frame.length, header + SEALED_HEADER));
    }
    if (flipped >= 0)
        header[flipped / 8] ^= (uint8_t)(1 << flipped % 8);
    put(peer, header, size);
    put(peer, sent, frame.length);
}

static void put_data(struct peer *peer, uint32_t pid, unsigned first, unsigned count, uint8_t byte, int flipped,
                     int is_packed)
{
    static uint8_t contents[AT_ONCE * STREAM_PAGE], packed[AT_ONCE * STREAM_PAGE];
    struct stream_frame frame = {'D', pid, BASE + (uint64_t)first * STREAM_PAGE, count, count * STREAM_PAGE, 0, 0};

    memset(contents, byte, frame.length);
    if (is_packed) {
        frame.type = 'C';
        frame.length = packer_pack(packer, contents, frame.length, packed);
        require(frame.length > 4 && frame.length < 100);
    }
    put_frame(peer, frame, is_packed ? packed : contents, flipped);
    for (unsigned i = first; i < first + count; i++)
        pages[pid - 1][i] = (struct page){byte, peer->round};
}

/* Compressed pages that may be none: only the frame around them is right. */
static void put_hostile(struct peer *peer, uint32_t pid, unsigned first, const uint8_t *bytes, size_t count)
{
    struct stream_frame frame = {'C', pid, BASE + (uint64_t)first * STREAM_PAGE, 1, 0, 0, 0};

    frame.length = count < STREAM_PAGE - 1 ? (uint32_t)count : STREAM_PAGE - 1;
    if (frame.length)
        put_frame(peer, frame, bytes, -1), peer->is_hostile = 1;
}

static void put_zero(struct peer *peer, uint32_t pid, unsigned first, unsigned count)
{
    put_frame(peer, (struct stream_frame){'Z', pid, BASE + (uint64_t)first * STREAM_PAGE, count, 0, 0, 0}, NULL, -1);
    for (unsigned i = first; i < first + count; i++)
        pages[pid - 1][i].byte = 0;
}

static void put_gone(struct peer *peer, uint32_t pid)
{
    put_frame(peer, (struct stream_frame){'X', pid, 0, 0, 0, 0, 0}, NULL, -1);
    for (unsigned i = 0; i < PAGES; i++)
        if (pages[pid - 1][i].round < peer->round)
            pages[pid - 1][i].byte = 0;
}

static void put_end(struct peer *peer, int type)
{
    put_frame(peer, (struct stream_frame){(uint32_t)type, 0, peer->round++, 0, 0, 0, 0}, NULL, -1);
}

static void put_op(const uint8_t op[OP], size_t left)
{
    unsigned which = op[1] % peer_count, first = (op[3] | (unsigned)op[4] << 8) % PAGES;
    struct peer *peer = &peers[which];
    uint32_t pid = which * PROCESSES + op[2] % PROCESSES + 1;
    unsigned count = 1 + op[5] % AT_ONCE;
    uint8_t byte = op[0] | 1;

    count = count < PAGES - first ? count : PAGES - first;
    if (op[0] % KINDS == 0)
        put_data(peer, pid, first, count, byte, -1, 0);
    else if (op[0] % KINDS == 1)
        put_zero(peer, pid, first, op[5] & 128 ? PAGES - first : count);
    else if (op[0] % KINDS == 2)
        put_gone(peer, pid);
    else if (op[0] % KINDS == 3)
        put_end(peer, 'R');
    else if (op[0] % KINDS == 4)
        put_data(peer, pid, first, count, byte, op[5] ^ op[3], op[2] & 128), peer->is_damaged = 1;
    else if (op[0] % KINDS == 5)
        put_data(peer, pid, first, count, byte, -1, 1);
    else
        put_hostile(peer, pid, first, op + OP, left);
}

/* All connections end the same rounds. */
static void put_last(int type)
{
    unsigned last = 1;

    for (unsigned i = 0; i < peer_count; i++)
        last = peers[i].round > last ? peers[i].round : last;
    for (unsigned i = 0; i < peer_count; i++) {
        while (peers[i].round < last)
            put_end(&peers[i], 'R');
        put_end(&peers[i], type);
    }
}

static void await_late(void)
{
    struct receiver_news news;

    do {
        poll(NULL, 0, 1);
        receiver_news(receiver, &news);
    } while (!news.failure && (!news.last || fetch.left));
}

/* Some pages of the first process of each connection come after the end of the last pass; then a connection may end. */
static void put_late(void)
{
    uint8_t bits[STREAM_BITS] = {0};
    struct receiver_news news;

    bits[STREAM_BITS - 8] = 0xf0; /* the last four, in a big-endian integer */
    for (unsigned i = 0; i < peer_count; i++)
        put_frame(&peers[i], (struct stream_frame){'M', i * PROCESSES + 1, BASE / CHUNK * CHUNK, STREAM_BLOCK,
                                                   STREAM_BITS, 0, 0}, bits, -1);
    put_last('P');
    do {
        poll(NULL, 0, 1);
        receiver_news(receiver, &news);
    } while (!news.last && !news.failure);
    for (unsigned i = 0; i < peer_count; i++) {
        put_data(&peers[i], i * PROCESSES + 1, 0, 2, 0x5a, -1, 0);
        put_data(&peers[i], i * PROCESSES + 1, 2, 2, 0x5b, -1, 1);
    }
    await_late();
}

static void check_chunk(const struct chunk *chunk, struct page *expected)
{
    require(chunk->address % CHUNK == 0);
    for (unsigned i = 0; i < CHUNK_PAGES; i++) {
        uint64_t address = chunk->address + (uint64_t)i * STREAM_PAGE, number = (address - BASE) / STREAM_PAGE;

        if (!chunk->rounds[i])
            continue;
        require(address >= BASE && number < PAGES && expected[number].byte);
        for (unsigned at = 0; at < STREAM_PAGE; at++)
            require(chunk->bytes[(size_t)i * STREAM_PAGE + at] == expected[number].byte);
        expected[number].byte = 0;
    }
}

static void check_cache(struct cache *cache)
{
    for (uint32_t pid = 1; pid <= peer_count * PROCESSES; pid++) {
        struct chunk **chunks;
        size_t count;

        require(!cache_take(cache, pid, &chunks, &count));
        for (size_t i = 0; i < count; i++) {
            check_chunk(chunks[i], pages[pid - 1]);
            chunk_put(chunks[i]);
        }
        free(chunks);
        for (unsigned i = 0; i < PAGES; i++)
            require(!pages[pid - 1][i].byte);
    }
}

static void start(struct cache *cache, int notify, int is_sealed)
{
    int theirs[CONNECTIONS];

    memset(pages, 0, sizeof(pages));
    for (unsigned i = 0; i < peer_count; i++) {
        int ends[2];

        require(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
        peers[i] = (struct peer){.fd = ends[0], .round = 1};
        if (is_sealed)
            require(!!(peers[i].seal = frame_seal_new(KEY, i, 0, 1)));
        theirs[i] = ends[1];
    }
    memset(&fetch, 0, sizeof(fetch));
    fetch_open(&fetch, notify);
    require(!receiver_start(receiver, cache, &fetch, theirs, peer_count, notify, is_sealed ? KEY : NULL));
}

/* As `receive` does before it joins the threads. */
static void await_end(int notify)
{
    struct pollfd look = {.fd = notify, .events = POLLIN};
    struct receiver_news news;

    do {
        eventfd_t value;

        poll(&look, 1, -1);
        eventfd_read(notify, &value);
        receiver_news(receiver, &news);
    } while (!news.failure && (!news.last || fetch.left));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct cache cache;
    int notify = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), is_damaged = 0, is_hostile = 0, is_raw, is_late;

    if (!count || !(receiver = malloc(sizeof(*receiver))))
        return 0;
    require(notify >= 0 && !cache_open(&cache));
    peer_count = 1 + bytes[0] % CONNECTIONS;
    is_raw = !!(bytes[0] & IS_RAW);
    is_late = bytes[0] & IS_LATE;
    packer = packer ? packer : packer_new();
    require(!!packer);
    start(&cache, notify, bytes[0] & IS_SEALED);
    bytes++, count--;
    for (unsigned i = 0; is_raw && i < peer_count; i++)
        put(&peers[i], bytes + count * i / peer_count, count * (i + 1) / peer_count - count * i / peer_count);
    for (size_t i = 0; !is_raw && i < FRAMES && (i + 1) * OP <= count; i++)
        put_op(bytes + i * OP, count - (i + 1) * OP);
    if (!is_raw && is_late)
        put_late();
    else if (!is_raw)
        put_last('L');
    for (unsigned i = 0; i < peer_count; i++) {
        shutdown(peers[i].fd, SHUT_WR);
        is_damaged |= peers[i].is_damaged;
        is_hostile |= peers[i].is_hostile;
    }
    await_end(notify);
    fetch_end(&fetch);
    receiver_join(receiver);
    fetch_close(&fetch);
    require(receiver->fetching || !receiver->failure == !!receiver->last);
    require(is_raw || is_hostile || !receiver->failure == !is_damaged);
    if (!is_raw && !is_hostile && !is_damaged)
        check_cache(&cache);
    for (unsigned i = 0; i < peer_count; i++) {
        close(peers[i].fd);
        frame_seal_free(peers[i].seal);
    }
    close(notify);
    cache_close(&cache);
    free(receiver);
    return 0;
}
