/* See sender.h. */
#include "sender.h"

#include <errno.h>
#include <isa-l/crc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "read_pages.h"
#include "stream.h"

enum {
    QUEUE = 16,                       /* batches that wait to be read */
    FRAMES_MAX = 2 * RANGES_MAX,      /* of a batch: each page in its own frame, and each range of zeros */
    PIECES_MAX = FRAMES_MAX + STREAM_PAGES_MAX,
};

struct connection {
    int socket;
    uint32_t sequence;
    uint8_t *pages;
    uint8_t headers[FRAMES_MAX][STREAM_HEADER];
    struct iovec pieces[PIECES_MAX];
    int frames, count; /* that are to be sent at once: frames, pieces */
    struct sender_totals totals;
};

static struct connection *connections;
static int connections_count;
static uint32_t answers;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct batch queue[QUEUE], filling; /* `filling` is the caller's alone */
static unsigned int queued, taken, finished; /* counts of batches, of which the queue has the last */
static int broken;                           /* the first error */

/* As verify/commands.h has it. */
static uint32_t crc32c(const uint8_t *bytes, size_t count)
{
    return ~crc32_iscsi((unsigned char *)bytes, (int)count, ~0U);
}

static int send_pieces(struct connection *connection)
{
    struct msghdr message = {.msg_iov = connection->pieces, .msg_iovlen = (size_t)connection->count};

    while (message.msg_iovlen) {
        ssize_t sent = sendmsg(connection->socket, &message, MSG_NOSIGNAL);

        if (sent < 0 && errno != EINTR)
            return -errno;
        for (size_t left = sent < 0 ? 0 : (size_t)sent; left;) {
            size_t part = left < message.msg_iov->iov_len ? left : message.msg_iov->iov_len;

            connection->totals.bytes += part;
            message.msg_iov->iov_base = (uint8_t *)message.msg_iov->iov_base + part;
            message.msg_iov->iov_len -= part;
            left -= part;
            if (!message.msg_iov->iov_len)
                message.msg_iov++, message.msg_iovlen--;
        }
    }
    connection->frames = connection->count = 0;
    return 0;
}

static void put_frame(struct connection *connection, struct stream_frame frame, const uint8_t *payload)
{
    uint8_t *header = connection->headers[connection->frames++];

    frame.sequence = connection->sequence++;
    frame.crc = frame.length ? crc32c(payload, frame.length) : 0;
    stream_encode(&frame, header);
    connection->pieces[connection->count++] = (struct iovec){header, STREAM_HEADER};
    if (frame.length)
        connection->pieces[connection->count++] = (struct iovec){(void *)payload, frame.length};
}

static void put_pages(struct connection *connection, uint32_t inside, uint64_t address, uint32_t pages,
                      const uint8_t *contents)
{
    struct stream_frame frame = {.type = contents ? 'D' : 'Z', .pid = inside, .address = address, .pages = pages};

    if (contents) {
        frame.length = pages * STREAM_PAGE;
        connection->totals.pages += pages;
    } else {
        connection->totals.zero_pages += pages;
    }
    put_frame(connection, frame, contents);
}

/* The pages of a range that were read: runs of equal state become frames. */
static void put_range(struct connection *connection, uint32_t inside, const struct range *range,
                      const enum page_state *states, const uint8_t *contents)
{
    for (uint32_t first = 0, end; first < range->pages; first = end) {
        for (end = first + 1; end < range->pages && states[end] == states[first]; end++)
            continue;
        if (states[first] != PAGE_IS_GONE)
            put_pages(connection, inside, range->start + (uint64_t)first * STREAM_PAGE, end - first,
                      states[first] == PAGE_IS_ZERO ? NULL : contents + (size_t)first * STREAM_PAGE);
    }
}

static int send_batch(struct connection *connection, const struct batch *batch)
{
    enum page_state states[STREAM_PAGES_MAX];
    uint32_t at = 0;

    read_pages(batch, connection->pages, states);
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct range *range = &batch->ranges[i];

        if (range->is_zero) {
            put_pages(connection, batch->inside, range->start, range->pages, NULL);
            continue;
        }
        put_range(connection, batch->inside, range, &states[at], connection->pages + (size_t)at * STREAM_PAGE);
        at += range->pages;
    }
    return connection->count ? send_pieces(connection) : 0;
}

static void *serve(void *context)
{
    struct connection *connection = context;
    struct batch batch;

    for (;;) {
        int error;

        pthread_mutex_lock(&lock);
        while (taken == queued)
            pthread_cond_wait(&changed, &lock);
        batch = queue[taken++ % QUEUE];
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        error = send_batch(connection, &batch);
        pthread_mutex_lock(&lock);
        finished++;
        if (error && !broken)
            broken = error;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        if (error)
            return NULL;
    }
}

/* Signals are for the thread that called us. */
static int start_thread(struct connection *connection)
{
    sigset_t all, before;
    pthread_t thread;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, NULL, serve, connection);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -error;
}

int sender_start(const int *sockets, int count)
{
    static const int on = 1;

    if (!(connections = calloc((size_t)count, sizeof(*connections))))
        return -ENOMEM;
    connections_count = count;
    for (int i = 0; i < count; i++) {
        struct connection *connection = &connections[i];
        int error;

        connection->socket = sockets[i];
        if (!(connection->pages = aligned_alloc(STREAM_PAGE, (size_t)STREAM_PAGES_MAX * STREAM_PAGE)))
            return -ENOMEM;
        /* the end of a round is not to wait for an acknowledgement; no TCP, no need */
        setsockopt(sockets[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        if ((error = start_thread(connection)))
            return error;
    }
    return 0;
}

/* Hands over what has been gathered. */
static int flush_batch(void)
{
    int error;

    if (!filling.count)
        return 0;
    pthread_mutex_lock(&lock);
    while (queued - taken == QUEUE && !broken)
        pthread_cond_wait(&changed, &lock);
    if (!(error = broken)) {
        queue[queued++ % QUEUE] = filling;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    filling.count = filling.pages = 0;
    return error;
}

static int add(const struct process *process, uint64_t start, uint64_t pages, bool is_zero)
{
    int error = 0;

    if (filling.count && filling.inside != process->inside && (error = flush_batch()))
        return error;
    filling.pid = process->pid;
    filling.memory = process->memory;
    filling.inside = process->inside;
    while (pages) {
        uint64_t room = is_zero ? UINT32_MAX : STREAM_PAGES_MAX - filling.pages, part = pages < room ? pages : room;

        filling.ranges[filling.count++] = (struct range){start, (uint32_t)part, is_zero};
        if (!is_zero)
            filling.pages += (uint32_t)part;
        start += part * STREAM_PAGE;
        pages -= part;
        if ((filling.count == RANGES_MAX || filling.pages == STREAM_PAGES_MAX) && (error = flush_batch()))
            return error;
    }
    return 0;
}

int sender_add(const struct process *process, uint64_t start, uint64_t end)
{
    return add(process, start, (end - start) / STREAM_PAGE, false);
}

int sender_add_zero(const struct process *process, uint64_t start, uint64_t end)
{
    return add(process, start, (end - start) / STREAM_PAGE, true);
}

/* The threads are idle from here on until the next batch. */
static int wait_for_threads(void)
{
    int error = flush_batch();

    pthread_mutex_lock(&lock);
    while (!error && finished != queued && !(error = broken))
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return error;
}

int sender_add_end(uint32_t inside)
{
    struct stream_frame frame = {.type = 'X', .pid = inside};
    int error = wait_for_threads();

    if (error)
        return error;
    put_frame(&connections[0], frame, NULL);
    return send_pieces(&connections[0]);
}

static int receive_answer(uint64_t number)
{
    uint8_t bytes[STREAM_HEADER];
    struct stream_frame frame;
    ssize_t got = recv(connections[0].socket, bytes, sizeof(bytes), MSG_WAITALL);

    if (got != (ssize_t)sizeof(bytes))
        return got < 0 ? -errno : -ECONNRESET;
    if (stream_decode(bytes, &frame) || frame.type != 'A' || frame.address != number || frame.sequence != answers++)
        return -EPROTO;
    return 0;
}

int sender_finish(char type, uint64_t number, struct sender_totals *totals)
{
    struct stream_frame frame = {.type = (uint32_t)type, .address = number};
    int error = wait_for_threads();

    *totals = (struct sender_totals){0};
    for (int i = 0; i < connections_count && !error; i++) {
        struct connection *connection = &connections[i];

        put_frame(connection, frame, NULL);
        error = send_pieces(connection);
        totals->bytes += connection->totals.bytes;
        totals->pages += connection->totals.pages;
        totals->zero_pages += connection->totals.zero_pages;
        connection->totals = (struct sender_totals){0};
    }
    return error ? error : receive_answer(number);
}
