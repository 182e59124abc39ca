/*
 * See relay.h. The streams belong to others (a terminal, mpirun's pipes), so their flags are left alone: after poll
 * says writable, a pipe takes PIPE_BUF bytes without blocking, and no more than that is written at once.
 */
#include "relay.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wherry/wire.h"

enum { CHUNK = 64 << 10 };

struct relay {
    int socket;
    struct seals *seals;
    bool with_input, finished, refused;
    bool opened; /* the frame at the head of `in` is decrypted */
    int code;
    struct buffer in, *out;
    size_t written; /* bytes of the O or E frame at the head of `in` that are out already */
    char *reason;
    size_t room;
};

static ssize_t parse_head(const struct relay *relay, struct wire_frame *frame)
{
    size_t wanted;

    return wire_parse_frame(buffer_head(&relay->in), relay->in.count, true, frame, &wanted);
}

static void consume(struct relay *relay, ssize_t size)
{
    buffer_consume(&relay->in, (size_t)size);
    relay->opened = false;
}

/* The stream that the frame at the head of `in` waits for: 1, 2, or -1 when there is none. */
static int waiting_stream(const struct relay *relay)
{
    struct wire_frame frame;

    if (!relay->opened || parse_head(relay, &frame) <= 0)
        return -1;
    return frame.type == 'O' ? 1 : frame.type == 'E' ? 2 : -1;
}

static void take_end(struct relay *relay, const struct wire_frame *frame)
{
    char text[WIRE_TEXT_MAX + 1];
    int number;

    memcpy(text, frame->payload, frame->length);
    text[frame->length] = 0;
    relay->finished = true;
    if (frame->type == 'F') {
        relay->refused = true;
        snprintf(relay->reason, relay->room, "%s", text);
    } else if (sscanf(text, "exit %d", &number) == 1) {
        relay->code = number;
    } else {
        relay->code = sscanf(text, "signal %d", &number) == 1 ? 128 + number : 255;
    }
}

/* Obeys whole frames up to one that needs a stream. Returns 0, or negative errno for what is not the node's. */
static int take_frames(struct relay *relay)
{
    while (!relay->finished) {
        struct wire_frame frame;
        ssize_t size = parse_head(relay, &frame);

        if (size > 0 && !relay->opened) {
            int error = seal_open(&relay->seals->to_client, buffer_head(&relay->in), frame.length);

            if (error < 0)
                return error;
            relay->opened = true;
        }
        if (size < 0)
            return -EPROTO;
        if (size == 0 || frame.type == 'O' || frame.type == 'E')
            return 0;
        if (frame.type == 'X' || frame.type == 'F')
            take_end(relay, &frame);
        consume(relay, size);
    }
    return 0;
}

static void write_stream(struct relay *relay, int stream)
{
    struct wire_frame frame;
    ssize_t size = parse_head(relay, &frame), count;
    size_t left;

    left = frame.length - relay->written;
    count = write(stream, frame.payload + relay->written, left < PIPE_BUF ? left : PIPE_BUF);
    if (count < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    relay->written += count < 0 ? left : (size_t)count; /* a stream that is gone takes everything */
    if (relay->written == frame.length) {
        consume(relay, size);
        relay->written = 0;
    }
}

/* Returns false when the connection is lost. */
static bool read_socket(struct relay *relay)
{
    ssize_t count;

    if (buffer_reserve(&relay->in, CHUNK) < 0)
        return false;
    count = recv(relay->socket, buffer_tail(&relay->in), CHUNK, MSG_DONTWAIT);
    if (count > 0)
        relay->in.count += (size_t)count;
    return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

static bool write_socket(struct relay *relay)
{
    ssize_t count = send(relay->socket, buffer_head(relay->out), relay->out->count, MSG_NOSIGNAL | MSG_DONTWAIT);

    if (count > 0)
        buffer_consume(relay->out, (size_t)count);
    return count >= 0 || errno == EAGAIN || errno == EINTR;
}

/* Returns false when the session has had too many frames. */
static bool read_input(struct relay *relay)
{
    ssize_t count;

    if (buffer_reserve(relay->out, WIRE_HEADER + CHUNK + WIRE_TAG) < 0)
        return true;
    count = read(STDIN_FILENO, buffer_tail(relay->out) + WIRE_HEADER, CHUNK);
    if (count < 0 && (errno == EINTR || errno == EAGAIN))
        return true;
    if (count <= 0) {
        count = 0;
        relay->with_input = false;
    }
    count = seal_close(&relay->seals->to_agent, buffer_tail(relay->out), 'I', (uint32_t)count);
    relay->out->count += count > 0 ? (size_t)count : 0;
    return count > 0;
}

/* One round of poll. Returns false when the connection is lost. */
static bool relay_step(struct relay *relay)
{
    int stream = waiting_stream(relay);
    short wanted = (short)((stream < 0 ? POLLIN : 0) | (relay->out->count ? POLLOUT : 0));
    struct pollfd polls[3] = {
        {.fd = wanted ? relay->socket : -1, .events = wanted}, /* else a broken connection would make poll spin */
        {.fd = stream, .events = POLLOUT},
        {.fd = relay->with_input && relay->out->count == 0 ? STDIN_FILENO : -1, .events = POLLIN},
    };

    if (poll(polls, 3, -1) < 0)
        return errno == EINTR;
    if (polls[1].revents)
        write_stream(relay, stream);
    if (polls[2].revents && !read_input(relay))
        return false;
    if (stream < 0 && polls[0].revents & (POLLIN | POLLHUP | POLLERR) && !read_socket(relay))
        return false;
    if (relay->out->count && polls[0].revents & POLLOUT && !write_socket(relay))
        return false;
    return true;
}

int relay_run(int socket, struct seals *seals, struct buffer *out, bool with_input, char *reason, size_t room)
{
    struct relay relay = {
        .socket = socket, .seals = seals, .with_input = with_input, .out = out, .reason = reason, .room = room,
        .code = 255};
    bool connected = true;
    int result;

    while (!relay.finished && connected) {
        connected = relay_step(&relay);
        if (take_frames(&relay) < 0)
            connected = false;
    }
    result = relay.refused ? RELAY_REFUSED : relay.finished ? relay.code : RELAY_LOST;
    buffer_free(&relay.in);
    return result;
}
