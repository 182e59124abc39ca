/* See link.h. */
#include "link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../faults.h"
#include "../window.h"

#define IOV_LIMIT 560    /* parts of one frame: every second page of a process, and its User Area */
#define READS_AT_ONCE 64 /* then other links are served */
#define FAULT_FRAMES 40 /* the fault "link:cut" ends the connection after so many frames */

int link_start(struct link *link)
{
    memset(link, 0, sizeof(*link));
    link->fd = -1;
    link->heard = link->answered = window_now();
    link->in = malloc(sizeof(struct frame_head) + FRAME_MAX);
    if (!link->in)
        return -ENOMEM;
    memset(link->in, 0, sizeof(struct frame_head) + FRAME_MAX); /* no page faults while a process is frozen */
    return 0;
}

static void forget_received(struct link *link, uint64_t received)
{
    while (link->first && link->first->head.number <= received) {
        struct frame *frame = link->first;

        if (link->next == frame) {
            link->next = frame->next;
            link->written = 0;
        }
        link->first = frame->next;
        link->answered = frame->made > link->answered ? frame->made : link->answered;
        free(frame->iov);
        free(frame);
    }
    if (!link->first)
        link->last = NULL;
}

void link_connect(struct link *link, int fd, uint64_t received)
{
    link_disconnect(link);
    link->fd = fd;
    link->heard = link->answered = window_now(); /* the greeting of the other side answers ours */
    forget_received(link, received);
    link->next = link->first;
    link_write(link);
}

void link_disconnect(struct link *link)
{
    if (link->fd < 0)
        return;
    close(link->fd);
    link->fd = -1;
    link->in_count = link->written = 0;
    link->next = link->first;
}

static void queue(struct link *link, struct frame *frame)
{
    if (frame->head.size > FRAME_MAX)
        abort(); /* the other side would not take it, now or ever */
    if (link->last)
        link->last->next = frame;
    else
        link->first = frame;
    link->last = frame;
    if (!link->next) {
        link->next = frame;
        link->written = 0;
    }
    link_write(link);
    if (fault_is("link:cut") && link->fd >= 0 && link->sent % FAULT_FRAMES == 0)
        shutdown(link->fd, SHUT_RDWR);
}

static struct frame *make_frame(struct link *link, enum frame_kind kind, uint32_t process, uint32_t host, size_t own)
{
    struct frame *frame = malloc(sizeof(*frame) + own);

    if (!frame)
        abort(); /* frames arrive once and in order: none may be dropped */
    frame->next = NULL;
    frame->iov = NULL;
    frame->iov_count = 0;
    frame->own = own;
    frame->made = window_now();
    frame->head = (struct frame_head){
        .size = (uint32_t)own,
        .kind = (uint16_t)kind,
        .process = (uint8_t)process,
        .host = (uint8_t)host,
        .number = ++link->sent,
    };
    return frame;
}

void link_send_parts(struct link *link, enum frame_kind kind, uint32_t process, uint32_t host, const void *one,
                     size_t one_size, const void *two, size_t two_size)
{
    struct frame *frame = make_frame(link, kind, process, host, one_size + two_size);

    if (one_size)
        memcpy(frame->payload, one, one_size);
    if (two_size)
        memcpy(frame->payload + one_size, two, two_size);
    queue(link, frame);
}

void link_send_iov(struct link *link, enum frame_kind kind, uint32_t process, uint32_t host, const void *own,
                    size_t own_size, const struct iovec *iov, size_t iov_count)
{
    struct frame *frame = make_frame(link, kind, process, host, own_size);

    memcpy(frame->payload, own, own_size);
    frame->iov = malloc((iov_count + 1) * sizeof(*iov));
    if (!frame->iov || iov_count > IOV_LIMIT)
        abort();
    memcpy(frame->iov, iov, iov_count * sizeof(*iov));
    frame->iov_count = iov_count;
    for (size_t i = 0; i < iov_count; i++)
        frame->head.size += (uint32_t)iov[i].iov_len;
    queue(link, frame);
}

void link_send(struct link *link, enum frame_kind kind, uint32_t process, uint32_t host, const void *payload,
               size_t size)
{
    link_send_parts(link, kind, process, host, payload, size, NULL, 0);
}

bool link_wants_to_write(const struct link *link)
{
    return link->fd >= 0 && link->next;
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

void link_write(struct link *link)
{
    while (link_wants_to_write(link)) {
        struct frame *frame = link->next;
        struct iovec parts[IOV_LIMIT + 1];
        struct msghdr message = {.msg_iov = parts};
        ssize_t count;

        if (link->written == 0)
            frame->head.received = link->told = link->received;
        message.msg_iovlen = list_unwritten(frame, link->written, parts);
        count = sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0) {
            if (errno != EAGAIN)
                link_disconnect(link);
            return;
        }
        link->written += (size_t)count;
        if (link->written == sizeof(frame->head) + frame->head.size) {
            link->next = frame->next;
            link->written = 0;
        }
    }
}

/* Only between frames, and only when there is no frame to carry it. A full connection will carry a later one. */
static void acknowledge(struct link *link)
{
    struct frame_head head = {.kind = FRAME_ACK, .received = link->received};

    if (link->fd < 0 || link->next || link->told == link->received)
        return;
    if (send(link->fd, &head, sizeof(head), MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(head))
        link->told = link->received;
    else
        link_disconnect(link); /* perhaps a part of it went out */
}

/* Hands on whole frames. Returns the bytes used, or -1: the other side does not speak as it should. */
static ssize_t handle_frames(struct link *link, link_handler *handler, void *context)
{
    struct frame_head head;
    size_t at = 0;

    while (link->in_count - at >= sizeof(head)) {
        memcpy(&head, link->in + at, sizeof(head));
        if (head.size > FRAME_MAX || head.kind >= FRAME_KINDS || head.process >= PROCESS_MAX)
            return -1;
        if (link->in_count - at < sizeof(head) + head.size)
            break;
        forget_received(link, head.received);
        at += sizeof(head) + head.size;
        if (!head.number || head.number <= link->received)
            continue; /* an acknowledgement, or sent again though it had come */
        if (head.number != link->received + 1)
            return -1;
        link->received = head.number;
        handler(context, link, &head, link->in + at - head.size);
        if (link->fd < 0) /* an answer found the connection broken: the rest comes again on the next */
            return -1;
    }
    return (ssize_t)at;
}

/* Returns whether there may be more. */
static bool read_once(struct link *link, link_handler *handler, void *context)
{
    size_t room = sizeof(struct frame_head) + FRAME_MAX - link->in_count;
    ssize_t count = recv(link->fd, link->in + link->in_count, room, MSG_DONTWAIT), used;

    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (count <= 0) {
        link_disconnect(link);
        return false;
    }
    link->heard = window_now();
    link->in_count += (size_t)count;
    used = handle_frames(link, handler, context);
    if (used < 0 || link->fd < 0) {
        link_disconnect(link);
        return false;
    }
    link->in_count -= (size_t)used;
    if (used) /* of a large frame that is not all there yet, nothing */
        memmove(link->in, link->in + used, link->in_count);
    return (size_t)count == room || link->in_count > 0;
}

void link_read(struct link *link, link_handler *handler, void *context)
{
    for (int turn = 0; turn < READS_AT_ONCE && read_once(link, handler, context); turn++)
        ;
    acknowledge(link);
}
