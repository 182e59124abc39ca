/* See sender.h. */
#include "sender.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "outgoing.h"
#include "read_pages.h"
#include "stream.h"

enum {
    QUEUE = 32,            /* batches that wait to be read */
    BATCH_PAGES_LEAST = 64 /* where connections share the pages to be sent */
};

struct connection {
    uint8_t *pages;
    struct outgoing outgoing;
    struct sender_totals totals;
};

static struct connection *connections;
static int connections_count;
static uint32_t batch_pages = STREAM_PAGES_MAX;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct batch queue[QUEUE], filling; /* `filling` is the caller's alone */
static unsigned int queued, taken, finished; /* counts of batches, of which the queue has the last */
static int broken;                           /* the first error */

static void put_pages(struct connection *connection, uint32_t ns_pid, uint64_t address, uint32_t pages,
                      uint8_t *contents)
{
    struct stream_frame frame = {.type = contents ? 'D' : 'Z', .pid = ns_pid, .address = address, .pages = pages};

    if (contents) {
        frame.length = pages * STREAM_PAGE;
        connection->totals.pages += pages;
    } else {
        connection->totals.zero_pages += pages;
    }
    outgoing_put(&connection->outgoing, frame, contents);
}

/* The pages of a range that were read: runs of equal state become frames. */
static void put_range(struct connection *connection, uint32_t ns_pid, const struct range *range,
                      const enum page_state *states, uint8_t *contents)
{
    for (uint32_t first = 0, end; first < range->pages; first = end) {
        for (end = first + 1; end < range->pages && states[end] == states[first]; end++)
            continue;
        if (states[first] != PAGE_IS_GONE)
            put_pages(connection, ns_pid, range->start + (uint64_t)first * STREAM_PAGE, end - first,
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
            put_pages(connection, batch->source.ns_pid, range->start, range->pages, NULL);
            continue;
        }
        put_range(connection, batch->source.ns_pid, range, &states[at], connection->pages + (size_t)at * STREAM_PAGE);
        at += range->pages;
    }
    return outgoing_send(&connection->outgoing);
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

int sender_start(const int *sockets, int count, const uint8_t *key, bool compresses)
{
    if (!(connections = calloc((size_t)count, sizeof(*connections))))
        return -ENOMEM;
    connections_count = count;
    batch_pages = STREAM_PAGES_MAX / (uint32_t)count;
    if (batch_pages < BATCH_PAGES_LEAST)
        batch_pages = BATCH_PAGES_LEAST;
    for (int i = 0; i < count; i++) {
        struct connection *connection = &connections[i];
        int error;

        if (!(connection->pages = aligned_alloc(STREAM_PAGE, (size_t)STREAM_PAGES_MAX * STREAM_PAGE)))
            return -ENOMEM;
        if ((error = outgoing_open(&connection->outgoing, sockets[i], (unsigned)i, key, compresses)) ||
            (error = start_thread(connection)))
            return error;
    }
    return 0;
}

/* Hands over the gathered batch. */
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

static int add(const struct source *source, uint64_t start, uint64_t pages, bool is_zero)
{
    int error = 0;

    if (filling.count && filling.source.ns_pid != source->ns_pid && (error = flush_batch()))
        return error;
    filling.source = *source;
    if (is_zero && source->sums)
        page_sums_clear(source->sums, start / STREAM_PAGE, start / STREAM_PAGE + pages);
    while (pages) {
        uint64_t room = is_zero ? UINT32_MAX : batch_pages - filling.pages, part = pages < room ? pages : room;

        filling.ranges[filling.count++] = (struct range){start, (uint32_t)part, is_zero};
        if (!is_zero)
            filling.pages += (uint32_t)part;
        start += part * STREAM_PAGE;
        pages -= part;
        if ((filling.count == RANGES_MAX || filling.pages == batch_pages) && (error = flush_batch()))
            return error;
    }
    return 0;
}

static struct source source_of(const struct process *process)
{
    return (struct source){.pid = process->pid,
                           .memory = process->memory,
                           .pagemap = process->pagemap,
                           .ns_pid = process->ns_pid,
                           .sums = process->sums,
                           .owed = process->owed.count ? &process->owed : NULL};
}

int sender_add(const struct process *process, uint64_t start, uint64_t end)
{
    struct source source = source_of(process);

    return add(&source, start, (end - start) / STREAM_PAGE, false);
}

int sender_add_zero(const struct process *process, uint64_t start, uint64_t end)
{
    struct source source = source_of(process);

    return add(&source, start, (end - start) / STREAM_PAGE, true);
}

int sender_add_of(const struct source *source, uint64_t start, uint64_t end, bool is_zero)
{
    return add(source, start, (end - start) / STREAM_PAGE, is_zero);
}

/* The threads are idle from here on until the next batch. */
static int wait_for_threads(void)
{
    int error = flush_batch();

    pthread_mutex_lock(&lock);
    while (!error && finished != queued && !broken)
        pthread_cond_wait(&changed, &lock);
    error = error ? error : broken;
    pthread_mutex_unlock(&lock);
    return error;
}

int sender_add_end(uint32_t ns_pid)
{
    struct stream_frame frame = {.type = 'X', .pid = ns_pid};
    int error = wait_for_threads();

    if (error)
        return error;
    outgoing_put(&connections[0].outgoing, frame, NULL);
    return outgoing_send(&connections[0].outgoing);
}

int sender_announce(uint32_t ns_pid, uint64_t block, const uint64_t pages[STREAM_BITS / 8])
{
    struct stream_frame frame = {
        .type = 'M', .pid = ns_pid, .address = block, .pages = STREAM_BLOCK, .length = STREAM_BITS};
    uint64_t bits[STREAM_BITS / 8];
    int error = wait_for_threads();

    if (error)
        return error;
    for (int i = 0; i < STREAM_BITS / 8; i++)
        bits[i] = htobe64(pages[i]);
    outgoing_put(&connections[0].outgoing, frame, (uint8_t *)bits);
    return outgoing_send(&connections[0].outgoing);
}

int sender_socket(void)
{
    return connections[0].outgoing.socket;
}

int sender_receive(struct stream_frame *frame)
{
    return outgoing_receive(&connections[0].outgoing, frame);
}

int sender_send_now(const struct batch *batch)
{
    struct connection *connection = &connections[0];
    uint64_t before = connection->totals.pages + connection->totals.zero_pages;
    int error = send_batch(connection, batch);

    if (error)
        return error;
    return connection->totals.pages + connection->totals.zero_pages - before == batch->pages ? 0 : -ESRCH;
}

static int receive_answer(uint64_t number)
{
    struct stream_frame frame;
    int error = sender_receive(&frame);

    if (error)
        return error;
    return frame.type == 'A' && frame.address == number ? 0 : -EPROTO;
}

/* The answer comes on the first connection; a lost connection is found at once, whichever it is. */
static int await_answer(uint64_t number)
{
    struct pollfd looks[STREAM_CONNECTIONS_MAX];

    for (int i = 0; i < connections_count; i++)
        looks[i] = (struct pollfd){.fd = connections[i].outgoing.socket, .events = i ? 0 : POLLIN};
    for (;;) {
        if (poll(looks, (nfds_t)connections_count, -1) < 0 && errno != EINTR)
            return -errno;
        if (looks[0].revents)
            return receive_answer(number);
        for (int i = 1; i < connections_count; i++)
            if (looks[i].revents)
                return -ECONNRESET;
    }
}

int sender_finish(char type, uint64_t number, struct sender_totals *totals)
{
    struct stream_frame frame = {.type = (uint32_t)type, .address = number};
    int error = wait_for_threads();

    *totals = (struct sender_totals){0};
    for (int i = 0; i < connections_count && !error; i++) {
        struct connection *connection = &connections[i];

        outgoing_put(&connection->outgoing, frame, NULL);
        error = outgoing_send(&connection->outgoing);
        totals->bytes += connection->outgoing.bytes;
        totals->pages += connection->totals.pages;
        totals->zero_pages += connection->totals.zero_pages;
        connection->totals = (struct sender_totals){0};
        connection->outgoing.bytes = 0;
    }
    return error ? error : await_answer(number);
}
