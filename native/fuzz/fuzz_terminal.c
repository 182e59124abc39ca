/*
 * libFuzzer on the frames of a terminal's input (terminal/frames.h).
 *
 *   clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined native/fuzz/fuzz_terminal.c \
 *         native/terminal/frames.c -o fuzz_terminal && ./fuzz_terminal -max_len=4096
 *
 * The invariant: a frame is no longer than the bytes there, and its bytes lie in it.
 */
#include <stdlib.h>

#include "../terminal/frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    while (count) {
        struct terminal_frame frame;
        ssize_t size = terminal_parse_frame(bytes, count, &frame);

        if (size <= 0)
            break;
        if ((size_t)size > count || frame.bytes < bytes || frame.bytes + frame.length > bytes + size)
            abort();
        bytes += size, count -= (size_t)size;
    }
    return 0;
}
