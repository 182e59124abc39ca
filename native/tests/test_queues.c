/* The byte queue and the kept frames: all that goes in comes out, in order, within the limit. */
#include <errno.h>
#include <string.h>

#include "../hold/frame_store.h"
#include "check.h"
#include "wherry/buffer.h"

static void test_buffer(void)
{
    struct buffer buffer = {0};
    unsigned char next_in = 0, next_out = 0;

    for (int round = 0; round < 1000; round++) {
        size_t in = (size_t)(round * 7 % 50), out = (size_t)(round * 11 % 50);

        CHECK(buffer_reserve(&buffer, in) == 0);
        for (size_t i = 0; i < in; i++, next_in++)
            buffer_append(&buffer, &next_in, 1);
        if (out > buffer.count)
            out = buffer.count;
        for (size_t i = 0; i < out; i++, next_out++)
            CHECK(buffer_head(&buffer)[i] == next_out);
        buffer_consume(&buffer, out);
    }
    buffer_free(&buffer);
    CHECK(buffer.count == 0 && !buffer.data);
}

static void test_frames(void)
{
    struct frames frames = {.limit = 3 * (2 + 100)};
    uint8_t frame[100];
    const uint8_t *taken;

    CHECK(frames_keep(&frames, frame, 0) == -EMSGSIZE);
    CHECK(frames_keep(&frames, frame, FRAME_MAX + 1) == -EMSGSIZE);
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < 3; i++) {
            memset(frame, i, sizeof frame);
            CHECK(frames_keep(&frames, frame, sizeof frame) == 0);
        }
        CHECK(frames_keep(&frames, frame, 1) == -ENOSPC);
        for (int i = 0; i < 3; i++) {
            CHECK(frames_take(&frames, &taken) == sizeof frame);
            CHECK(taken[0] == i && taken[99] == i);
        }
        CHECK(frames_take(&frames, &taken) == 0);
    }
    frames_free(&frames);
}

int main(void)
{
    test_buffer();
    test_frames();
    return 0;
}
