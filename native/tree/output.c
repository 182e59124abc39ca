/* See output.h. */
#include "output.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { SMALL = 1 << 14 };

void output_open(struct output *output, int socket)
{
    static const int on = 1;

    *output = (struct output){.socket = socket, .lock = PTHREAD_MUTEX_INITIALIZER};
    /* the end of a pass is not to wait for an acknowledgement; no TCP, no need */
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static int send_all(struct output *output, struct iovec *pieces, size_t count)
{
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};

    while (message.msg_iovlen) {
        ssize_t sent = sendmsg(output->socket, &message, MSG_NOSIGNAL);

        if (sent < 0 && errno != EINTR)
            return -errno;
        for (size_t left = sent < 0 ? 0 : (size_t)sent; message.msg_iovlen;) {
            size_t part = left < message.msg_iov->iov_len ? left : message.msg_iov->iov_len;

            output->bytes += part;
            message.msg_iov->iov_base = (uint8_t *)message.msg_iov->iov_base + part;
            message.msg_iov->iov_len -= part;
            left -= part;
            if (message.msg_iov->iov_len)
                break;
            message.msg_iov++, message.msg_iovlen--;
        }
    }
    return 0;
}

static int flush(struct output *output)
{
    struct iovec waiting = {output->room, output->waiting};

    output->waiting = 0;
    return waiting.iov_len ? send_all(output, &waiting, 1) : 0;
}

static int put(struct output *output, const struct wire_frame *frame, uint64_t sum, const void *payload)
{
    uint8_t header[WIRE_HEADER];
    size_t size = WIRE_HEADER + frame->length;
    int error = 0;

    wire_encode(frame, output->sequence++, sum, header);
    if (output->waiting + size > OUTPUT_ROOM || frame->length > SMALL)
        error = flush(output);
    if (error || frame->length > SMALL) {
        struct iovec pieces[] = {{header, WIRE_HEADER}, {(void *)(uintptr_t)payload, frame->length}};

        return error ? error : send_all(output, pieces, 2);
    }
    memcpy(output->room + output->waiting, header, WIRE_HEADER);
    if (frame->length)
        memcpy(output->room + output->waiting + WIRE_HEADER, payload, frame->length);
    output->waiting += size;
    return 0;
}

int output_put(struct output *output, char type, uint64_t number, uint64_t at, const void *payload, uint32_t length)
{
    struct wire_frame frame = {(uint32_t)type, length, number, at};
    uint64_t sum = wire_sum(payload, length);
    int error;

    pthread_mutex_lock(&output->lock);
    if (!output->error)
        output->error = put(output, &frame, sum, payload);
    error = output->error;
    pthread_mutex_unlock(&output->lock);
    return error;
}

int output_await(struct output *output, uint64_t number)
{
    uint8_t header[WIRE_HEADER];
    struct wire_frame frame;
    ssize_t got;

    if (!output->error)
        output->error = flush(output);
    if (output->error)
        return output->error;
    got = recv(output->socket, header, sizeof(header), MSG_WAITALL);
    if (got != (ssize_t)sizeof(header))
        return output->error = got < 0 ? -errno : -ECONNRESET;
    if (wire_decode(header, &frame) || wire_check(header, output->answers++, NULL, 0) || frame.type != 'A' ||
        frame.number != number)
        output->error = -EPROTO;
    return output->error;
}
