/* See outgoing.h. */
#include "outgoing.h"

#include <errno.h>
#include <isa-l/crc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>

/* As verify/commands.h has it. */
static uint32_t crc32c(const uint8_t *bytes, size_t count)
{
    return ~crc32_iscsi((unsigned char *)(uintptr_t)bytes, (int)count, ~0U);
}

int outgoing_open(struct outgoing *outgoing, int socket, unsigned number, const uint8_t *key, bool compresses)
{
    static const int on = 1;

    outgoing->socket = socket;
    if (compresses && (!(outgoing->packer = packer_new()) ||
                       !(outgoing->packed = malloc((size_t)STREAM_PAGES_MAX * STREAM_PAGE))))
        return -ENOMEM;
    if (key && (!(outgoing->seal = frame_seal_new(key, number, 0, 1)) ||
                !(outgoing->opens = frame_seal_new(key, number, 1, 0))))
        return -ENOMEM;
    /* the end of a round is not to wait for an acknowledgement; no TCP, no need */
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return 0;
}

/* Compressed contents are never longer than the pages that were read, so there is room for all of a batch. */
static uint8_t *pack(struct outgoing *outgoing, struct stream_frame *frame, uint8_t *payload)
{
    uint8_t *packed = outgoing->packed + outgoing->packed_count;
    uint32_t length = packer_pack(outgoing->packer, payload, frame->length, packed);

    if (!length)
        return payload;
    outgoing->packed_count += length;
    frame->type = 'C';
    frame->length = length;
    return packed;
}

void outgoing_put(struct outgoing *outgoing, struct stream_frame frame, uint8_t *payload)
{
    uint8_t *header = outgoing->headers[outgoing->frames++], plain[STREAM_HEADER];
    size_t size = STREAM_HEADER;

    if (frame.type == 'D' && outgoing->packer)
        payload = pack(outgoing, &frame, payload);
    frame.sequence = outgoing->sequence++;
    frame.crc = frame.length ? crc32c(payload, frame.length) : 0;
    if (outgoing->seal) {
        size = frame.length ? SEALED_HEADER + FRAME_TAG : SEALED_HEADER;
        stream_encode(&frame, plain);
        if (frame_seal_close(outgoing->seal, plain, header, payload, frame.length, header + SEALED_HEADER))
            outgoing->error = -EIO;
    } else {
        stream_encode(&frame, header);
    }
    outgoing->pieces[outgoing->count++] = (struct iovec){header, size};
    if (frame.length)
        outgoing->pieces[outgoing->count++] = (struct iovec){payload, frame.length};
}

int outgoing_send(struct outgoing *outgoing)
{
    struct msghdr message = {.msg_iov = outgoing->pieces, .msg_iovlen = (size_t)outgoing->count};

    if (outgoing->error)
        return outgoing->error;
    while (message.msg_iovlen) {
        ssize_t sent = sendmsg(outgoing->socket, &message, MSG_NOSIGNAL);

        if (sent < 0 && errno != EINTR)
            return -errno;
        for (size_t left = sent < 0 ? 0 : (size_t)sent; left;) {
            size_t part = left < message.msg_iov->iov_len ? left : message.msg_iov->iov_len;

            outgoing->bytes += part;
            message.msg_iov->iov_base = (uint8_t *)message.msg_iov->iov_base + part;
            message.msg_iov->iov_len -= part;
            left -= part;
            if (!message.msg_iov->iov_len)
                message.msg_iov++, message.msg_iovlen--;
        }
    }
    outgoing->frames = outgoing->count = 0;
    outgoing->packed_count = 0;
    return 0;
}

int outgoing_receive(struct outgoing *outgoing, struct stream_frame *frame)
{
    uint8_t bytes[SEALED_HEADER], header[STREAM_HEADER], *plain = outgoing->opens ? header : bytes;
    size_t size = outgoing->opens ? SEALED_HEADER : STREAM_HEADER;
    ssize_t got = recv(outgoing->socket, bytes, size, MSG_WAITALL);

    if (got != (ssize_t)size)
        return got < 0 ? -errno : -ECONNRESET;
    if (outgoing->opens && frame_seal_open_header(outgoing->opens, bytes, header))
        return -EPROTO;
    return stream_decode(plain, frame) || frame->length || frame->sequence != outgoing->received++ ? -EPROTO : 0;
}
