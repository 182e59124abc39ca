/*
 * See io_forwarding.h. The streams belong to others (a terminal, mpirun's pipes), so their flags are left alone: after
 * poll reports POLLOUT, a pipe takes PIPE_BUF bytes without blocking, and no more than that is written at once.
 */
#include "io_forwarding.h"

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

struct forwarding {
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

static ssize_t parse_head(const struct forwarding *forwarding, struct wire_frame *frame)
{
    size_t wanted;

    return wire_parse_frame(buffer_head(&forwarding->in), forwarding->in.count, true, frame, &wanted);
}

static void consume(struct forwarding *forwarding, ssize_t size)
{
    buffer_consume(&forwarding->in, (size_t)size);
    forwarding->opened = false;
}

/* The stream that the frame at the head of `in` waits for: 1, 2, or -1 when there is none. */
static int waiting_stream(const struct forwarding *forwarding)
{
    struct wire_frame frame;

    if (!forwarding->opened || parse_head(forwarding, &frame) <= 0)
        return -1;
    return frame.type == 'O' ? 1 : frame.type == 'E' ? 2 : -1;
}

static void take_end(struct forwarding *forwarding, const struct wire_frame *frame)
{
    char text[WIRE_TEXT_MAX + 1];
    int number;

    memcpy(text, frame->payload, frame->length);
    text[frame->length] = 0;
    forwarding->finished = true;
    if (frame->type == 'F') {
        forwarding->refused = true;
        snprintf(forwarding->reason, forwarding->room, "%s", text);
    } else if (sscanf(text, "exit %d", &number) == 1) {
        forwarding->code = number;
    } else {
        forwarding->code = sscanf(text, "signal %d", &number) == 1 ? 128 + number : 255;
    }
}

/*
 * Obeys whole frames up to the first that needs a stream. Returns 0, or negative errno for a frame that no node sends.
 */
static int take_frames(struct forwarding *forwarding)
{
    while (!forwarding->finished) {
        struct wire_frame frame;
        ssize_t size = parse_head(forwarding, &frame);

        if (size > 0 && !forwarding->opened) {
            int error = seal_open(&forwarding->seals->to_client, buffer_head(&forwarding->in), frame.length);

            if (error < 0)
                return error;
            forwarding->opened = true;
        }
        if (size < 0)
            return -EPROTO;
        if (size == 0 || frame.type == 'O' || frame.type == 'E')
            return 0;
        if (frame.type == 'X' || frame.type == 'F')
            take_end(forwarding, &frame);
        consume(forwarding, size);
    }
    return 0;
}

static void write_stream(struct forwarding *forwarding, int stream)
{
    struct wire_frame frame;
    ssize_t size = parse_head(forwarding, &frame), count;
    size_t left;

    left = frame.length - forwarding->written;
    count = write(stream, frame.payload + forwarding->written, left < PIPE_BUF ? left : PIPE_BUF);
    if (count < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    forwarding->written += count < 0 ? left : (size_t)count; /* a stream that is gone takes everything */
    if (forwarding->written == frame.length) {
        consume(forwarding, size);
        forwarding->written = 0;
    }
}

/* Returns false when the connection is lost. */
static bool read_socket(struct forwarding *forwarding)
{
    ssize_t count;

    if (buffer_reserve(&forwarding->in, CHUNK) < 0)
        return false;
    count = recv(forwarding->socket, buffer_tail(&forwarding->in), CHUNK, MSG_DONTWAIT);
    if (count > 0)
        forwarding->in.count += (size_t)count;
    return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

static bool write_socket(struct forwarding *forwarding)
{
    ssize_t count = send(forwarding->socket, buffer_head(forwarding->out), forwarding->out->count,
                         MSG_NOSIGNAL | MSG_DONTWAIT);

    if (count > 0)
        buffer_consume(forwarding->out, (size_t)count);
    return count >= 0 || errno == EAGAIN || errno == EINTR;
}

/* Returns false when the session has had too many frames. */
static bool read_input(struct forwarding *forwarding)
{
    ssize_t count;

    if (buffer_reserve(forwarding->out, WIRE_HEADER + CHUNK + WIRE_TAG) < 0)
        return true;
    count = read(STDIN_FILENO, buffer_tail(forwarding->out) + WIRE_HEADER, CHUNK);
    if (count < 0 && (errno == EINTR || errno == EAGAIN))
        return true;
    if (count <= 0) {
        count = 0;
        forwarding->with_input = false;
    }
    count = seal_close(&forwarding->seals->to_agent, buffer_tail(forwarding->out), 'I', (uint32_t)count);
    forwarding->out->count += count > 0 ? (size_t)count : 0;
    return count > 0;
}

/* One round of poll. Returns false when the connection is lost. */
static bool forwarding_step(struct forwarding *forwarding)
{
    int stream = waiting_stream(forwarding);
    short wanted = (short)((stream < 0 ? POLLIN : 0) | (forwarding->out->count ? POLLOUT : 0));
    struct pollfd polls[3] = {
        {.fd = wanted ? forwarding->socket : -1, .events = wanted}, /* else a broken connection would make poll spin */
        {.fd = stream, .events = POLLOUT},
        {.fd = forwarding->with_input && forwarding->out->count == 0 ? STDIN_FILENO : -1, .events = POLLIN},
    };

    if (poll(polls, 3, -1) < 0)
        return errno == EINTR;
    if (polls[1].revents)
        write_stream(forwarding, stream);
    if (polls[2].revents && !read_input(forwarding))
        return false;
    if (stream < 0 && polls[0].revents & (POLLIN | POLLHUP | POLLERR) && !read_socket(forwarding))
        return false;
    if (forwarding->out->count && polls[0].revents & POLLOUT && !write_socket(forwarding))
        return false;
    return true;
}

int forward_io(int socket, struct seals *seals, struct buffer *out, bool with_input, char *reason, size_t room)
{
    struct forwarding forwarding = {
        .socket = socket, .seals = seals, .with_input = with_input, .out = out, .reason = reason, .room = room,
        .code = 255};
    bool connected = true;
    int result;

    while (!forwarding.finished && connected) {
        connected = forwarding_step(&forwarding);
        if (take_frames(&forwarding) < 0)
            connected = false;
    }
    result = forwarding.refused ? FORWARD_REFUSED : forwarding.finished ? forwarding.code : FORWARD_LOST;
    buffer_free(&forwarding.in);
    return result;
}
