/* See channel.h. */
#include "channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../shared/fault_injection.h"
#include "../../shared/shared_memory.h"

#define IOV_LIMIT 560    /* parts of one frame: every second page of a process, and its User Area */
#define READS_AT_ONCE 64 /* then other channels are served */
#define FAULT_FRAMES 40 /* the fault "channel:cut" ends the connection after so many frames */

int channel_start(struct channel *channel)
{
    memset(channel, 0, sizeof(*channel));
    channel->fd = -1;
    channel->heard = channel->answered = shared_now();
    channel->in = malloc(sizeof(struct frame_head) + FRAME_MAX);
    if (!channel->in)
        return -ENOMEM;
    memset(channel->in, 0, sizeof(struct frame_head) + FRAME_MAX); /* no page faults while a process is frozen */
    return 0;
}

static void forget_received(struct channel *channel, uint64_t received)
{
    while (channel->first && channel->first->head.number <= received) {
        struct frame *frame = channel->first;

        if (channel->next == frame) {
            channel->next = frame->next;
            channel->written = 0;
        }
        channel->first = frame->next;
        channel->answered = frame->made > channel->answered ? frame->made : channel->answered;
        free(frame->iov);
        free(frame);
    }
    if (!channel->first)
        channel->last = NULL;
}

void channel_connect(struct channel *channel, int fd, uint64_t received)
{
    channel_disconnect(channel);
    channel->fd = fd;
    channel->heard = channel->answered = shared_now(); /* the greeting of the other side answers ours */
    forget_received(channel, received);
    channel->next = channel->first;
    channel_write(channel);
}

void channel_disconnect(struct channel *channel)
{
    if (channel->fd < 0)
        return;
    close(channel->fd);
    channel->fd = -1;
    channel->in_count = channel->written = 0;
    channel->next = channel->first;
}

static void queue(struct channel *channel, struct frame *frame)
{
    if (frame->head.size > FRAME_MAX)
        abort(); /* the other side would not take it, now or ever */
    if (channel->last)
        channel->last->next = frame;
    else
        channel->first = frame;
    channel->last = frame;
    if (!channel->next) {
        channel->next = frame;
        channel->written = 0;
    }
    channel_write(channel);
    if (fault_is("channel:cut") && channel->fd >= 0 && channel->sent % FAULT_FRAMES == 0)
        shutdown(channel->fd, SHUT_RDWR);
}

static struct frame *make_frame(struct channel *channel, enum frame_kind kind, uint32_t process, uint32_t host,
                                size_t own)
{
    struct frame *frame = malloc(sizeof(*frame) + own);

    if (!frame)
        abort(); /* frames arrive once and in order: none may be dropped */
    frame->next = NULL;
    frame->iov = NULL;
    frame->iov_count = 0;
    frame->own = own;
    frame->made = shared_now();
    frame->head = (struct frame_head){
        .size = (uint32_t)own,
        .kind = (uint16_t)kind,
        .process = (uint8_t)process,
        .host = (uint8_t)host,
        .number = ++channel->sent,
    };
    return frame;
}

void channel_send_parts(struct channel *channel, enum frame_kind kind, uint32_t process, uint32_t host, const void *one,
                        size_t one_size, const void *two, size_t two_size)
{
    struct frame *frame = make_frame(channel, kind, process, host, one_size + two_size);

    if (one_size)
        memcpy(frame->payload, one, one_size);
    if (two_size)
        memcpy(frame->payload + one_size, two, two_size);
    queue(channel, frame);
}

void channel_send_iov(struct channel *channel, enum frame_kind kind, uint32_t process, uint32_t host, const void *own,
                      size_t own_size, const struct iovec *iov, size_t iov_count)
{
    struct frame *frame = make_frame(channel, kind, process, host, own_size);

    memcpy(frame->payload, own, own_size);
    frame->iov = malloc((iov_count + 1) * sizeof(*iov));
    if (!frame->iov || iov_count > IOV_LIMIT)
        abort();
    memcpy(frame->iov, iov, iov_count * sizeof(*iov));
    frame->iov_count = iov_count;
    for (size_t i = 0; i < iov_count; i++)
        frame->head.size += (uint32_t)iov[i].iov_len;
    queue(channel, frame);
}

void channel_send(struct channel *channel, enum frame_kind kind, uint32_t process, uint32_t host, const void *payload,
                  size_t size)
{
    channel_send_parts(channel, kind, process, host, payload, size, NULL, 0);
}

bool channel_wants_to_write(const struct channel *channel)
{
    return channel->fd >= 0 && channel->next;
}

/* The parts of the frame that have not been written. Returns their count. */
static size_t list_unwritten(const struct frame *frame, size_t written, struct iovec parts[IOV_LIMIT + 1])
{
    struct iovec head = {(void *)&frame->head, sizeof(frame->head) + frame->own};
    size_t count = 0;

    for (size_t i = 0; i <= frame->iov_count; i++) {
        struct iovec part = i ? frame->iov[i - 1] : head;
        size_t skip = written < part.iov_len ? written : part.iov_len;

        written -= skip;
        if (skip < part.iov_len)
            parts[count++] = (struct iovec){(uint8_t *)part.iov_base + skip, part.iov_len - skip};
    }
    return count;
}

void channel_write(struct channel *channel)
{
    while (channel_wants_to_write(channel)) {
        struct frame *frame = channel->next;
        struct iovec parts[IOV_LIMIT + 1];
        struct msghdr message = {.msg_iov = parts};
        ssize_t count;

        if (channel->written == 0)
            frame->head.received = channel->told = channel->received;
        message.msg_iovlen = list_unwritten(frame, channel->written, parts);
        count = sendmsg(channel->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0) {
            if (errno != EAGAIN)
                channel_disconnect(channel);
            return;
        }
        channel->written += (size_t)count;
        if (channel->written == sizeof(frame->head) + frame->head.size) {
            channel->next = frame->next;
            channel->written = 0;
        }
    }
}

/* Only between frames, and only when there is no frame to carry it. A full connection will carry a later one. */
static void acknowledge(struct channel *channel)
{
    struct frame_head head = {.kind = FRAME_ACK, .received = channel->received};

    if (channel->fd < 0 || channel->next || channel->told == channel->received)
        return;
    if (send(channel->fd, &head, sizeof(head), MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(head))
        channel->told = channel->received;
    else
        channel_disconnect(channel); /* perhaps a part of it went out */
}

/* Hands whole frames to the handler. Returns the bytes used, or -1 for a violation of the protocol. */
static ssize_t handle_frames(struct channel *channel, channel_handler *handler, void *context)
{
    struct frame_head head;
    size_t at = 0;

    while (channel->in_count - at >= sizeof(head)) {
        memcpy(&head, channel->in + at, sizeof(head));
        if (head.size > FRAME_MAX || head.kind >= FRAME_KINDS || head.process >= PROCESS_MAX)
            return -1;
        if (channel->in_count - at < sizeof(head) + head.size)
            break;
        forget_received(channel, head.received);
        at += sizeof(head) + head.size;
        if (!head.number || head.number <= channel->received)
            continue; /* an acknowledgement, or sent again though it had come */
        if (head.number != channel->received + 1)
            return -1;
        channel->received = head.number;
        handler(context, channel, &head, channel->in + at - head.size);
        if (channel->fd < 0) /* an answer found the connection broken: the rest comes again on the next */
            return -1;
    }
    return (ssize_t)at;
}

/* Returns whether there may be more. */
static bool read_once(struct channel *channel, channel_handler *handler, void *context)
{
    size_t room = sizeof(struct frame_head) + FRAME_MAX - channel->in_count;
    ssize_t count = recv(channel->fd, channel->in + channel->in_count, room, MSG_DONTWAIT), used;

    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (count <= 0) {
        channel_disconnect(channel);
        return false;
    }
    channel->heard = shared_now();
    channel->in_count += (size_t)count;
    used = handle_frames(channel, handler, context);
    if (used < 0 || channel->fd < 0) {
        channel_disconnect(channel);
        return false;
    }
    channel->in_count -= (size_t)used;
    if (used) /* of a large frame that is not all there yet, nothing */
        memmove(channel->in, channel->in + used, channel->in_count);
    return (size_t)count == room || channel->in_count > 0;
}

void channel_read(struct channel *channel, channel_handler *handler, void *context)
{
    for (int turn = 0; turn < READS_AT_ONCE && read_once(channel, handler, context); turn++)
        ;
    acknowledge(channel);
}
