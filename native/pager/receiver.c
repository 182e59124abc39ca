/* See receiver.h. */
#include "receiver.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <isa-l/crc.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DRAIN_MS = 1000 };

static uint32_t crc32c(uint32_t crc, const uint8_t *bytes, size_t count)
{
    return ~crc32_iscsi((unsigned char *)bytes, (int)count, ~crc);
}

static int is_over(struct receiver *receiver)
{
    int over;

    pthread_mutex_lock(&receiver->lock);
    over = (receiver->last && !receiver->fetching) || receiver->failure;
    pthread_mutex_unlock(&receiver->lock);
    return over;
}

static int is_fetching(struct receiver *receiver)
{
    int fetching;

    pthread_mutex_lock(&receiver->lock);
    fetching = receiver->fetching;
    pthread_mutex_unlock(&receiver->lock);
    return fetching;
}

static void fail(struct connection *connection, int code, const char *reason)
{
    struct receiver *receiver = connection->receiver;

    pthread_mutex_lock(&receiver->lock);
    if (!receiver->failure && (!receiver->last || (receiver->fetching && receiver->fetch->left))) {
        receiver->failure = code;
        snprintf(receiver->reason, sizeof(receiver->reason), "connection %td, frame %" PRIu32 ": %s",
                 connection - receiver->connections, connection->received, reason);
    }
    pthread_mutex_unlock(&receiver->lock);
    eventfd_write(receiver->notify, 1);
}

/* A connection whose last pass has ended may be closed while others continue, unless pages come later. */
static int fail_broken(struct connection *connection, ssize_t got)
{
    if (connection->last == 'L')
        return -EPIPE;
    if (got < 0)
        fail(connection, RECEIVE_BROKEN, strerror(errno));
    else
        fail(connection, RECEIVE_BROKEN, "the other end has closed it");
    return -EPIPE;
}

static int refuse(struct connection *connection, const char *reason)
{
    fail(connection, RECEIVE_REFUSED, reason);
    return -EPROTO;
}

static int fail_no_memory(struct connection *connection)
{
    fail(connection, 1, "no memory");
    return -ENOMEM;
}

/* First from the buffer; the rest goes straight to its place. */
static int receive_bytes(struct connection *connection, uint8_t *bytes, size_t count)
{
    size_t have = connection->filled - connection->head;
    ssize_t got;

    if (have > count)
        have = count;
    memcpy(bytes, connection->buffer + connection->head, have);
    connection->head += have;
    while (have < count) {
        got = recv(connection->fd, bytes + have, count - have, MSG_WAITALL);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return fail_broken(connection, got);
        have += (size_t)got;
    }
    return 0;
}

/* Until a header is in the buffer. */
static int receive_some(struct connection *connection, size_t wanted)
{
    size_t have = connection->filled - connection->head;

    if (have < wanted) {
        memmove(connection->buffer, connection->buffer + connection->head, have);
        connection->head = 0;
        connection->filled = have;
    }
    while (connection->filled - connection->head < wanted) {
        ssize_t got = recv(connection->fd, connection->buffer + connection->filled,
                           RECEIVER_BUFFER - connection->filled, 0);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return fail_broken(connection, got);
        connection->filled += (size_t)got;
    }
    return 0;
}

static int receive_header(struct connection *connection, struct stream_frame *frame)
{
    size_t size = connection->seal ? SEALED_HEADER : STREAM_HEADER;
    uint8_t opened[STREAM_HEADER];
    const uint8_t *header;
    int error = receive_some(connection, size);

    if (error)
        return error;
    header = connection->buffer + connection->head;
    if (connection->seal) {
        if (frame_seal_open_header(connection->seal, header, opened))
            return refuse(connection, "it is not sealed with the move's key, or not the frame that was due");
        header = opened;
    }
    if (stream_decode(header, frame) < 0 || strchr("AQF", (int)frame->type))
        return refuse(connection, "no such frame");
    if (frame->sequence != connection->received)
        return refuse(connection, "out of sequence");
    if (connection->last && !is_fetching(connection->receiver))
        return refuse(connection, "behind the end of the last pass");
    connection->head += size;
    connection->received++;
    return 0;
}

/* In place: when the bytes are not those sent, the move ends and nobody looks at them. */
static int receive_data(struct connection *connection, const struct stream_frame *frame)
{
    struct cache *cache = connection->receiver->cache;
    struct iovec pieces[2];
    uint32_t crc = 0;
    int error = 0, count;

    cache_begin_frame(cache);
    count = cache_place(cache, frame, connection->round, pieces);
    for (int i = 0; i < count && !error; i++) {
        error = receive_bytes(connection, pieces[i].iov_base, pieces[i].iov_len);
        if (!error)
            crc = crc32c(crc, pieces[i].iov_base, pieces[i].iov_len);
    }
    cache_end_frame(cache);
    if (count < 0)
        return fail_no_memory(connection);
    if (!error && crc != frame->crc)
        return refuse(connection, "the checksum is wrong");
    return error;
}

static uint8_t *room(uint8_t **buffer)
{
    return *buffer ? *buffer : (*buffer = malloc((size_t)STREAM_PAGES_MAX * STREAM_PAGE));
}

/* The payload of a frame, as it was before it was sealed, with the right checksum. */
static int receive_payload(struct connection *connection, const struct stream_frame *frame)
{
    uint8_t tag[FRAME_TAG];
    int error = connection->seal ? receive_bytes(connection, tag, sizeof(tag)) : 0;

    if (!error && !room(&connection->payload))
        return fail_no_memory(connection);
    if (!error)
        error = receive_bytes(connection, connection->payload, frame->length);
    if (error)
        return error;
    if (connection->seal && frame_seal_open_payload(connection->seal, connection->payload, frame->length, tag))
        return refuse(connection, "its payload is not sealed with the move's key");
    if (crc32c(0, connection->payload, frame->length) != frame->crc)
        return refuse(connection, "the checksum is wrong");
    return 0;
}

/* Where the contents are, or NULL. */
static const uint8_t *unpack(struct connection *connection, const struct stream_frame *frame)
{
    if (frame->type == 'D')
        return connection->payload;
    if (!room(&connection->unpacked) || !(connection->unpacker || (connection->unpacker = unpacker_new()))) {
        fail_no_memory(connection);
        return NULL;
    }
    if (unpacker_unpack(connection->unpacker, connection->payload, frame->length, connection->unpacked,
                        frame->pages * STREAM_PAGE)) {
        refuse(connection, "its compressed pages are wrong");
        return NULL;
    }
    return connection->unpacked;
}

static int receive_by_way(struct connection *connection, const struct stream_frame *frame)
{
    struct cache *cache = connection->receiver->cache;
    int error = receive_payload(connection, frame), count;
    const uint8_t *contents = error ? NULL : unpack(connection, frame);
    struct iovec pieces[2];

    if (!contents)
        return error ? error : -EPROTO;
    cache_begin_frame(cache);
    count = cache_place(cache, frame, connection->round, pieces);
    for (int i = 0; i < count; i++) {
        memcpy(pieces[i].iov_base, contents, pieces[i].iov_len);
        contents += pieces[i].iov_len;
    }
    cache_end_frame(cache);
    return count < 0 ? fail_no_memory(connection) : 0;
}

/* Notes the pages that come later. */
static int receive_bits(struct connection *connection, const struct stream_frame *frame)
{
    uint64_t pages[STREAM_BITS / 8];
    int error = receive_payload(connection, frame);

    if (error)
        return error;
    memcpy(pages, connection->payload, sizeof(pages));
    for (int i = 0; i < STREAM_BITS / 8; i++)
        pages[i] = be64toh(pages[i]);
    error = cache_await(connection->receiver->cache, frame->pid, frame->address, connection->round, pages);
    return error ? fail_no_memory(connection) : 0;
}

static int receive_late_data(struct connection *connection, const struct stream_frame *frame, const struct iovec *piece)
{
    const uint8_t *contents;
    int error;

    if (frame->type == 'D' && !connection->seal) {
        if ((error = receive_bytes(connection, piece->iov_base, piece->iov_len)))
            return error;
        return crc32c(0, piece->iov_base, piece->iov_len) == frame->crc ? 0
                                                                       : refuse(connection, "the checksum is wrong");
    }
    if ((error = receive_payload(connection, frame)))
        return error;
    if (!(contents = unpack(connection, frame)))
        return -EPROTO;
    memcpy(piece->iov_base, contents, piece->iov_len);
    return 0;
}

/* Into the cache, of which the address maps have the chunks by now. */
static int receive_late(struct connection *connection, const struct stream_frame *frame)
{
    struct fetch *fetch = connection->receiver->fetch;
    struct iovec piece;
    int error;

    if (!strchr("DCZ", (int)frame->type) || fetch_place(fetch, frame, &piece))
        return refuse(connection, "nobody waits for this");
    if (frame->type != 'Z' && (error = receive_late_data(connection, frame, &piece)))
        return error;
    fetch_came(fetch, frame);
    return 0;
}

/* Only the caller sends. */
static int send_frame(struct receiver *receiver, struct stream_frame frame)
{
    uint8_t bytes[SEALED_HEADER], sealed[SEALED_HEADER];
    const uint8_t *sent = receiver->seal ? sealed : bytes;
    ssize_t size = receiver->seal ? SEALED_HEADER : STREAM_HEADER;

    frame.sequence = receiver->sent++;
    stream_encode(&frame, bytes);
    if (receiver->seal && frame_seal_close(receiver->seal, bytes, sealed, NULL, 0, NULL))
        return -EPIPE;
    return send(receiver->connections[0].fd, sent, (size_t)size, MSG_NOSIGNAL) == size ? 0 : -EPIPE;
}

static int send_answer(struct receiver *receiver, uint64_t number)
{
    return send_frame(receiver, (struct stream_frame){.type = 'A', .address = number});
}

/* A broken connection is found by who reads it. */
static int ask(void *context, const struct fetch_request *request)
{
    if (!request)
        return send_frame(context, (struct stream_frame){.type = 'F'});
    return send_frame(context, (struct stream_frame){
                                   .type = 'Q', .pid = request->pid, .address = request->address, .pages = 1});
}

static int is_complete(const struct receiver *receiver, uint64_t number, int last)
{
    for (unsigned i = 0; i < receiver->count; i++)
        if (receiver->connections[i].end != number || receiver->connections[i].last != last)
            return 0;
    return 1;
}

/* Whether all connections can still end the same rounds; else each would wait for the others. */
static int can_agree(const struct receiver *receiver, const struct connection *connection)
{
    for (unsigned i = 0; i < receiver->count; i++) {
        const struct connection *other = &receiver->connections[i];

        if (connection->last && other->last && connection->end != other->end)
            return 0;
        if (connection->last && !other->last && other->end >= connection->end)
            return 0;
        if (!connection->last && other->last && connection->end >= other->end)
            return 0;
    }
    return 1;
}

/* Nothing more comes: the other threads wait for more in vain. */
static void hang_up(struct receiver *receiver)
{
    for (unsigned i = 0; i < receiver->count; i++)
        shutdown(receiver->connections[i].fd, SHUT_RDWR);
}

static int is_quiet(const struct connection *connection)
{
    uint8_t byte;

    return connection->head == connection->filled &&
           recv(connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

static int finish_round(struct connection *connection, uint64_t number, int last)
{
    struct receiver *receiver = connection->receiver;
    int error = 0, agreed;

    pthread_mutex_lock(&receiver->lock);
    connection->end = number;
    connection->last = last;
    agreed = can_agree(receiver, connection);
    if (connection->round < UINT16_MAX)
        connection->round++;
    if (is_complete(receiver, number, last)) {
        if (last == 'P')
            error = fetch_begin(receiver->fetch, receiver->cache, ask, receiver);
        receiver->fetching = !error && last == 'P';
        if (!error)
            error = send_answer(receiver, number);
        receiver->passes = (uint16_t)(connection->round - 1);
        if (!error && last)
            receiver->last = number;
        else if (!error)
            receiver->rounds = number;
        if (receiver->last && !receiver->fetching)
            hang_up(receiver);
    }
    pthread_mutex_unlock(&receiver->lock);
    if (!agreed)
        return refuse(connection, "not the round that the other connections end");
    if (error) {
        fail(connection, RECEIVE_BROKEN, "it takes no answer");
        return error;
    }
    eventfd_write(receiver->notify, 1);
    return 0;
}

static int take_end(struct connection *connection, const struct stream_frame *frame)
{
    int last = frame->type == 'R' ? 0 : (int)frame->type;

    if (last ? frame->address <= connection->end : frame->address != connection->end + 1)
        return refuse(connection, "not the round that was due");
    if (last && !is_quiet(connection))
        return refuse(connection, "behind the end of the last pass");
    return finish_round(connection, frame->address, last);
}

static int take(struct connection *connection, const struct stream_frame *frame)
{
    struct cache *cache = connection->receiver->cache;

    if (connection->last)
        return receive_late(connection, frame);
    switch (frame->type) {
    case 'D':
        return connection->seal ? receive_by_way(connection, frame) : receive_data(connection, frame);
    case 'C':
        return receive_by_way(connection, frame);
    case 'Z':
        cache_zero(cache, frame->pid, frame->address, frame->pages);
        return 0;
    case 'M':
        return receive_bits(connection, frame);
    case 'X':
        cache_void(cache, frame->pid, connection->round);
        return 0;
    default:
        return take_end(connection, frame);
    }
}

static void *run(void *argument)
{
    struct connection *connection = argument;
    struct stream_frame frame;

    while (!is_over(connection->receiver) && !receive_header(connection, &frame) && !take(connection, &frame))
        ;
    return NULL;
}

int receiver_start(struct receiver *receiver, struct cache *cache, struct fetch *fetch, const int *sockets,
                   unsigned count, int notify, const uint8_t *key)
{
    memset(receiver, 0, sizeof(*receiver));
    receiver->cache = cache;
    receiver->fetch = fetch;
    receiver->notify = notify;
    receiver->count = count;
    pthread_mutex_init(&receiver->lock, NULL);
    for (unsigned i = 0; i < count; i++) {
        receiver->connections[i].receiver = receiver;
        receiver->connections[i].fd = sockets[i];
        receiver->connections[i].round = 1;
        if (key && !(receiver->connections[i].seal = frame_seal_new(key, i, 0, 0)))
            return -ENOMEM;
    }
    if (key && !(receiver->seal = frame_seal_new(key, 0, 1, 1)))
        return -ENOMEM;
    for (unsigned i = 0; i < count; i++) {
        int error = pthread_create(&receiver->connections[i].thread, NULL, run, &receiver->connections[i]);

        if (error)
            return -error;
    }
    return 0;
}

void receiver_news(struct receiver *receiver, struct receiver_news *news)
{
    pthread_mutex_lock(&receiver->lock);
    news->rounds = receiver->rounds;
    news->last = receiver->last;
    news->fetching = receiver->fetching;
    news->passes = receiver->passes;
    news->failure = receiver->failure;
    memcpy(news->reason, receiver->reason, sizeof(news->reason));
    pthread_mutex_unlock(&receiver->lock);
}

/* The source has got F, and perhaps sends just now: until it has hung up. */
static void drain(int fd)
{
    struct pollfd look = {.fd = fd, .events = POLLIN};
    uint8_t bytes[4096];

    while (poll(&look, 1, DRAIN_MS) > 0 && recv(fd, bytes, sizeof(bytes), 0) > 0)
        ;
}

void receiver_join(struct receiver *receiver)
{
    for (unsigned i = 0; i < receiver->count && receiver->fetching; i++)
        drain(receiver->connections[i].fd);
    if (receiver->fetching) {
        hang_up(receiver);
        fetch_join(receiver->fetch);
    }
    for (unsigned i = 0; i < receiver->count; i++) {
        struct connection *connection = &receiver->connections[i];

        pthread_join(connection->thread, NULL);
        close(connection->fd);
        frame_seal_free(connection->seal);
        unpacker_free(connection->unpacker);
        free(connection->payload);
        free(connection->unpacked);
    }
    frame_seal_free(receiver->seal);
    pthread_mutex_destroy(&receiver->lock);
}
