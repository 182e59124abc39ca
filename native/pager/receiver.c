/* See receiver.h. */
#include "receiver.h"

#include <errno.h>
#include <inttypes.h>
#include <isa-l/crc.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

static uint32_t crc32c(uint32_t crc, const uint8_t *bytes, size_t count)
{
    return ~crc32_iscsi((unsigned char *)bytes, (int)count, ~crc);
}

static int is_over(struct receiver *receiver)
{
    int over;

    pthread_mutex_lock(&receiver->lock);
    over = receiver->last || receiver->failure;
    pthread_mutex_unlock(&receiver->lock);
    return over;
}

static void fail(struct connection *connection, int code, const char *reason)
{
    struct receiver *receiver = connection->receiver;

    pthread_mutex_lock(&receiver->lock);
    if (!receiver->failure && !receiver->last) {
        receiver->failure = code;
        snprintf(receiver->reason, sizeof(receiver->reason), "connection %td, frame %" PRIu32 ": %s",
                 connection - receiver->connections, connection->received, reason);
    }
    pthread_mutex_unlock(&receiver->lock);
    eventfd_write(receiver->notify, 1);
}

/* A connection whose last pass has ended may be closed while others go on. */
static int fail_broken(struct connection *connection, ssize_t got)
{
    if (connection->last)
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

/* What is in the buffer first; the rest goes straight to its place. */
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
static int receive_some(struct connection *connection)
{
    size_t have = connection->filled - connection->head;

    if (have < STREAM_HEADER) {
        memmove(connection->buffer, connection->buffer + connection->head, have);
        connection->head = 0;
        connection->filled = have;
    }
    while (connection->filled - connection->head < STREAM_HEADER) {
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
    int error = receive_some(connection);

    if (error)
        return error;
    if (stream_decode(connection->buffer + connection->head, frame) < 0 || frame->type == 'A')
        return refuse(connection, "no such frame");
    if (frame->sequence != connection->received)
        return refuse(connection, "out of sequence");
    if (connection->last)
        return refuse(connection, "behind the end of the last pass");
    connection->head += STREAM_HEADER;
    connection->received++;
    return 0;
}

/* In place: when it is not what was sent, the move ends and nobody looks at it. */
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
    if (count < 0) {
        fail(connection, 1, "no memory");
        return count;
    }
    if (!error && crc != frame->crc)
        return refuse(connection, "the checksum is wrong");
    return error;
}

static int send_answer(struct receiver *receiver, uint64_t number)
{
    struct stream_frame frame = {.type = 'A', .address = number, .sequence = receiver->sent++};
    uint8_t bytes[STREAM_HEADER];

    stream_encode(&frame, bytes);
    return send(receiver->connections[0].fd, bytes, sizeof(bytes), MSG_NOSIGNAL) == sizeof(bytes) ? 0 : -EPIPE;
}

static int is_complete(const struct receiver *receiver, uint64_t number, int last)
{
    for (unsigned i = 0; i < receiver->count; i++)
        if (receiver->connections[i].end != number || receiver->connections[i].last != last)
            return 0;
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
    int error = 0;

    pthread_mutex_lock(&receiver->lock);
    connection->end = number;
    connection->last = last;
    if (connection->round < UINT16_MAX)
        connection->round++;
    if (is_complete(receiver, number, last)) {
        error = send_answer(receiver, number);
        receiver->passes = (uint16_t)(connection->round - 1);
        if (!error && last)
            receiver->last = number;
        else if (!error)
            receiver->rounds = number;
        if (receiver->last)
            hang_up(receiver);
    }
    pthread_mutex_unlock(&receiver->lock);
    if (error) {
        fail(connection, RECEIVE_BROKEN, "it takes no answer");
        return error;
    }
    eventfd_write(receiver->notify, 1);
    return 0;
}

static int take_end(struct connection *connection, const struct stream_frame *frame)
{
    int last = frame->type == 'L';

    if (last ? frame->address <= connection->end : frame->address != connection->end + 1)
        return refuse(connection, "not the round that was due");
    if (last && !is_quiet(connection))
        return refuse(connection, "behind the end of the last pass");
    return finish_round(connection, frame->address, last);
}

static int take(struct connection *connection, const struct stream_frame *frame)
{
    struct cache *cache = connection->receiver->cache;

    switch (frame->type) {
    case 'D':
        return receive_data(connection, frame);
    case 'Z':
        cache_zero(cache, frame->pid, frame->address, frame->pages);
        return 0;
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

int receiver_start(struct receiver *receiver, struct cache *cache, const int *sockets, unsigned count, int notify)
{
    memset(receiver, 0, sizeof(*receiver));
    receiver->cache = cache;
    receiver->notify = notify;
    receiver->count = count;
    pthread_mutex_init(&receiver->lock, NULL);
    for (unsigned i = 0; i < count; i++) {
        receiver->connections[i].receiver = receiver;
        receiver->connections[i].fd = sockets[i];
        receiver->connections[i].round = 1;
    }
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
    news->passes = receiver->passes;
    news->failure = receiver->failure;
    memcpy(news->reason, receiver->reason, sizeof(news->reason));
    pthread_mutex_unlock(&receiver->lock);
}

void receiver_join(struct receiver *receiver)
{
    for (unsigned i = 0; i < receiver->count; i++) {
        pthread_join(receiver->connections[i].thread, NULL);
        close(receiver->connections[i].fd);
    }
    pthread_mutex_destroy(&receiver->lock);
}
