/*
 * The destination's side of a node's files.
 *
 *   wherry-tree receive DIRECTORY STAGING FD
 *
 * DIRECTORY is empty; STAGING is made, on the same file system, and is removed when all is there. FD is a connected socket
 * to `wherry-tree send` (wire.h). A line on standard output reports the end:
 *
 *   last N COUNT     all of N passes is here; the directory has COUNT inodes and names, and equals the source's. Exit 0
 *
 * Exit 3: the connection is lost before that; 1: anything else, with the reason.
 */
#include "receive.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "store.h"

enum { ROOM = WIRE_HEADER + WIRE_PAYLOAD_MAX };

struct input {
    int socket;
    uint64_t sequence, answers;
    size_t first, count; /* bytes that were received, and not looked at */
    uint8_t room[2 * ROOM];
};

/* Receives until as many bytes are there; NULL: the connection is lost, and why, 0 at its end. */
static const uint8_t *await(struct input *input, size_t count, int *why)
{
    if (input->first + count > sizeof(input->room)) {
        memmove(input->room, input->room + input->first, input->count);
        input->first = 0;
    }
    while (input->count < count) {
        size_t behind = input->first + input->count;
        ssize_t got = recv(input->socket, input->room + behind, sizeof(input->room) - behind, 0);

        if (got < 0 && errno == EINTR)
            continue;
        *why = got < 0 ? -errno : 0;
        if (got <= 0)
            return NULL;
        input->count += (size_t)got;
    }
    return input->room + input->first;
}

static int send_answer(struct input *input, uint64_t pass)
{
    const struct wire_frame frame = {'A', 0, pass, 0};
    uint8_t header[WIRE_HEADER];

    wire_encode(&frame, input->answers++, 0, header);
    return send(input->socket, header, sizeof(header), MSG_NOSIGNAL) == (ssize_t)sizeof(header) ? 0 : -errno;
}

static int say_wrong(int error)
{
    if (error == -EPROTO)
        return tree_failed("no such frame may come here", error);
    if (error == -EBADMSG)
        return tree_failed("the files that arrived differ from the files at the source", error);
    if (error == -ENOSPC)
        return tree_failed("the files cannot be written, as their room is full (a file that is replaced while it is "
                           "sent takes its room twice; with --mode stop no file is replaced)",
                           error);
    return tree_failed("the files cannot be written", error);
}

static int end_pass(struct store *store, const struct wire_frame *frame, const uint8_t *payload)
{
    struct page_sum all;
    int error = store_settle(store);

    if (!error && frame->type == 'R')
        return syncfs(store->root) ? -errno : 0; /* so that the last pass does not wait for the disk (0: on tmpfs) */
    if (error)
        return error;
    all = (struct page_sum){wire_number(payload), wire_number(payload + sizeof(all.low))};
    error = store_finish(store, frame->at, all);
    if (!error)
        printf("last %" PRIu64 " %" PRIu64 "\n", frame->number, frame->at);
    return error;
}

static int receive(struct store *store, struct input *input, const char *staging)
{
    for (uint64_t pass = 1;;) {
        const uint8_t *bytes;
        struct wire_frame frame;
        int error = 0;

        if (!(bytes = await(input, WIRE_HEADER, &error)))
            break;
        if (wire_decode(bytes, &frame))
            return say_wrong(-EPROTO);
        if (!(bytes = await(input, WIRE_HEADER + (size_t)frame.length, &error)))
            break;
        if (wire_check(bytes, input->sequence++, bytes + WIRE_HEADER, frame.length))
            return tree_failed("the checksum of a frame is wrong", -EBADMSG);
        input->first += WIRE_HEADER + frame.length, input->count -= WIRE_HEADER + frame.length;
        if (frame.type != 'R' && frame.type != 'E') {
            if ((error = store_apply(store, &frame, bytes + WIRE_HEADER)))
                return say_wrong(error);
            continue;
        }
        if (frame.number != pass++)
            return say_wrong(-EPROTO);
        if ((error = end_pass(store, &frame, bytes + WIRE_HEADER)))
            return say_wrong(error);
        if (frame.type == 'E' && rmdir(staging))
            return tree_failed(staging, -errno);
        fflush(stdout);
        if (send_answer(input, frame.number))
            break;
        if (frame.type == 'E')
            return 0;
    }
    fputs("wherry-tree: the connection was closed before all files were here\n", stderr);
    return CONNECTION_LOST;
}

int tree_receive(const char *directory, const char *staging, const char *socket)
{
    static struct input input;
    static struct store store;

    signal(SIGPIPE, SIG_IGN);
    if ((input.socket = tree_descriptor(socket)) < 0)
        return tree_failed(socket, -EBADF);
    if ((store.root = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        return tree_failed(directory, -errno);
    if (mkdir(staging, 0700) || (store.staging = open(staging, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0)
        return tree_failed(staging, -errno);
    return receive(&store, &input, staging);
}
