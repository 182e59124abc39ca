/*
 * libFuzzer on the bytes that come over a connection of two boards of tiles (tiles/native/board/hosts/channel.h).
 *
 *   clang -g -O1 -D_GNU_SOURCE -DWHERRY_TILES_BUILD=1u -fsanitize=fuzzer,address,undefined \
 *         tiles/native/fuzz/fuzz_board_channel.c tiles/native/board/hosts/channel.c $(find tiles/native/shared -name '*.c') \
 *         -o fuzz_board_channel && ./fuzz_board_channel -max_len=4096
 *
 * The first byte is the number of bytes that come at once. The invariant: a frame that is handed on is of a kind, a
 * process and a size that there are, is the next in number, and lies within the received bytes.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../board/hosts/channel.h"
#include "../shared/shared_memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static uint64_t number;

static void require(int condition)
{
    if (!condition)
        abort();
}

static void take(void *context, struct channel *channel, const struct frame_head *head, const uint8_t *payload)
{
    (void)context;
    require(head->kind < FRAME_KINDS && head->process < PROCESS_MAX && head->size <= FRAME_MAX);
    require(head->number == ++number && channel->received == number);
    require(payload >= channel->in + sizeof *head && payload + head->size <= channel->in + channel->in_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static struct channel channel;
    uint8_t *in = channel.in;
    int ends[2];

    if (count == 0)
        return 0;
    if (!in)
        require(channel_start(&channel) == 0);
    else
        channel = (struct channel){.fd = -1, .in = in};
    number = 0;
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    channel_connect(&channel, ends[0], 0);
    channel_send(&channel, FRAME_GONE, 0, 0, NULL, 0); /* something that can be acknowledged */
    for (size_t step = bytes[0] + 1u, at = 1; at < count && channel.fd >= 0; at += step) {
        size_t size = step < count - at ? step : count - at;

        (void)!send(ends[1], bytes + at, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        channel_read(&channel, take, NULL);
    }
    close(ends[1]);
    channel_disconnect(&channel);
    while (channel.first) {
        struct frame *frame = channel.first;

        channel.first = frame->next;
        free(frame->iov);
        free(frame);
    }
    return 0;
}
