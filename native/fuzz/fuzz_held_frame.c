/*
 * libFuzzer on the frames that wherry-hold looks into: whatever a node or its peers send.
 *
 *   clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined -I native/include \
 *         native/fuzz/fuzz_held_frame.c native/hold/frame_store.c native/lib/buffer.c -o fuzz_held_frame \
 *         && ./fuzz_held_frame
 *
 * The invariant besides the sanitizers': a frame without room for an IPv4 header carries no data.
 */
#include <stdlib.h>

#include "../hold/frame_store.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (frame_has_data(bytes, count) && count < 14 + 20)
        abort();
    return 0;
}
