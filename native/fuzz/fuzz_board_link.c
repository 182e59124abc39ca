/*
 * libFuzzer on the bytes that come over a connection of two boards of tiles (manycore/board/link.h).
 *
 *   clang -g -O1 -D_GNU_SOURCE -DWHERRY_TILES_BUILD=1u -fsanitize=fuzzer,address,undefined \
 *         native/fuzz/fuzz_board_link.c native/manycore/board/link.c native/manycore/window.c native/manycore/uarea.c \
 *         native/manycore/crc.c native/manycore/cpu.c -o fuzz_board_link && ./fuzz_board_link -max_len=4096
 *
 * The first byte says how many bytes come at once. The invariant: a frame that is handed on is of a kind, a process and
 * a size that there are, is the next in number, and lies within what was received.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../manycore/board/link.h"
#include "../manycore/window.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static uint64_t number;

static void require(int condition)
{
    if (!condition)
        abort();
}

static void take(void *context, struct link *link, const struct frame_head *head, const uint8_t *payload)
{
    (void)context;
    require(head->kind < FRAME_KINDS && head->process < PROCESS_MAX && head->size <= FRAME_MAX);
    require(head->number == ++number && link->received == number);
    require(payload >= link->in + sizeof *head && payload + head->size <= link->in + link->in_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static struct link link;
    uint8_t *in = link.in;
    int ends[2];

    if (count == 0)
        return 0;
    if (!in)
        require(link_start(&link) == 0);
    else
        link = (struct link){.fd = -1, .in = in};
    number = 0;
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    link_connect(&link, ends[0], 0);
    link_send(&link, FRAME_GONE, 0, 0, NULL, 0); /* something that can be acknowledged */
    for (size_t step = bytes[0] + 1u, at = 1; at < count && link.fd >= 0; at += step) {
        size_t size = step < count - at ? step : count - at;

        (void)!send(ends[1], bytes + at, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        link_read(&link, take, NULL);
    }
    close(ends[1]);
    link_disconnect(&link);
    while (link.first) {
        struct frame *frame = link.first;

        link.first = frame->next;
        free(frame->lent);
        free(frame);
    }
    return 0;
}
