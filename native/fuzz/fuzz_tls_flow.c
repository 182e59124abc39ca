/*
 * libFuzzer on the bytes that come out of a session of wherry-tls (tls/inflow.h): a peer with the key may still send
 * anything.
 *
 *   clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined native/fuzz/fuzz_tls_flow.c \
 *         native/tls/{inflow,outflow}.c -lzstd -o fuzz_tls_flow
 *   ./fuzz_tls_flow -max_len=4096
 *
 * The first byte: 0, the rest comes, in pieces; 1 or 2, a program gives the rest, as it is or compressed.
 * The second byte is how large pieces are. The invariants: given bytes come, in whatever pieces, and nothing else;
 * other bytes that come end the stream; nothing is read or written where it should not be.
 */
#include <stdlib.h>
#include <string.h>

#include "../tls/inflow.h"
#include "../tls/outflow.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

enum { REPEATED = 5 };

static struct inflow in;
static struct outflow out;
static uint8_t *came;
static size_t came_count;

static void require(int condition)
{
    if (!condition)
        abort();
}

/* The program takes the ready bytes, in pieces. */
static int drain(size_t piece)
{
    size_t ready;
    const uint8_t *bytes;

    while (bytes = inflow_ready(&in, &ready), ready) {
        size_t part = ready < piece ? ready : piece;

        require(!!(came = realloc(came, came_count + part)));
        memcpy(came + came_count, bytes, part);
        came_count += part;
        if (came_count > 1 << 22 || inflow_given(&in, part))
            return -1;
    }
    return 0;
}

static int arrive(const uint8_t *bytes, size_t count, size_t piece)
{
    while (count) {
        size_t part = count < piece ? count : piece;

        part = part < INFLOW_TAKEN_MAX ? part : INFLOW_TAKEN_MAX;
        memcpy(inflow_taken(&in), bytes, part);
        if (inflow_take(&in, part) || drain(4 * piece))
            return -1;
        bytes += part;
        count -= part;
    }
    return 0;
}

static int carry(size_t piece)
{
    size_t ready;
    const uint8_t *bytes;

    while (bytes = outflow_ready(&out, &ready), ready) {
        size_t part = ready < 3 * piece ? ready : 3 * piece;

        if (arrive(bytes, part, piece) || outflow_sent(&out, part))
            return -1;
    }
    return 0;
}

static void round_trip(const uint8_t *bytes, size_t count, size_t piece, int compresses)
{
    size_t expected = 0;

    require(!outflow_open(&out, compresses) && !carry(piece));
    for (int i = 0; i < REPEATED; i++)
        for (size_t at = 0; at < count; at += 7 * piece) {
            size_t part = count - at < 7 * piece ? count - at : 7 * piece;

            memcpy(out.given, bytes + at, part);
            require(!outflow_give(&out, part) && !carry(piece));
            expected += part;
            require(came_count == expected && !memcmp(came + expected - part, bytes + at, part)); /* all is flushed */
        }
    outflow_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    size_t piece;

    if (count < 2)
        return 0;
    memset(&in, 0, sizeof(in));
    memset(&out, 0, sizeof(out));
    came = NULL;
    came_count = 0;
    piece = 1 + (size_t)bytes[1] * 4;
    if (bytes[0] % 3)
        round_trip(bytes + 2, count - 2, piece, bytes[0] % 3 == 2);
    else
        arrive(bytes + 2, count - 2, piece);
    inflow_free(&in);
    free(came);
    return 0;
}
