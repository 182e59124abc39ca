/*
 * libFuzzer on the input of wherry-link and wherry-hold: the commands (link/command.h), and frames in the order and at
 * the times that come (link/shape.h, link/delay_queue.h, hold/frame_store.h).
 *
 *   clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined,float-cast-overflow -I native/include \
 *         native/fuzz/fuzz_link.c native/link/{command,shape,delay_queue}.c \
 *         native/hold/frame_store.c native/lib/buffer.c -o fuzz_link && ./fuzz_link -max_len=512
 *
 * The first line is a command. The invariants: rules that are accepted give no frame a time before the last one's, and
 * line and store give back the frames put in, in order, within their limits.
 */
#include <stdlib.h>
#include <string.h>

#include "../hold/frame_store.h"
#include "../link/command.h"
#include "../link/delay_queue.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static void require(int condition)
{
    if (!condition)
        abort();
}

static void use_line(const struct shape_rules *rules, const uint8_t *bytes, size_t count)
{
    struct shape shape = {.random = 1};
    struct delay_queue line = {.limit = 1 << 20};
    int64_t now = 0, last = 0;

    shape_set_rules(&shape, rules, 0);
    require(shape_queue_limit(rules) >= 64 << 10 && shape_queue_limit(rules) < UINT64_C(1) << 60);
    for (size_t i = 0; i + 1 < count; i += 2) {
        size_t length = bytes[i] * 256u;
        int64_t due = shape_admit(&shape, now, shape_wire_bytes(length, 54, bytes[i + 1] * 16u));
        uint8_t *frame = calloc(1, length + 1);

        require(frame != NULL && due >= SHAPE_DROPPED);
        if (due >= 0) {
            require(due >= now && due >= last);
            last = due;
            (void)!delay_queue_push(&line, due, frame, length);
        }
        require(line.bytes <= line.limit);
        free(frame);
        now += bytes[i + 1] * INT64_C(100000);
        while (line.head && line.head->due_ns <= now)
            delay_queue_pop(&line);
    }
    delay_queue_hasten(&line, now);
    delay_queue_free(&line);
    require(line.bytes == 0);
}

static void use_store(const uint8_t *bytes, size_t count)
{
    struct frames frames = {.limit = 4096};
    size_t put = 0, kept[256], first = 0;
    const uint8_t *frame;

    for (size_t i = 0; i < count && put < 256; i++) {
        size_t length = bytes[i] & 0x7f;
        uint8_t *made = malloc(length + 1);

        require(made != NULL);
        memset(made, (int)put, length);
        if (bytes[i] & 0x80) {
            length = frames_take(&frames, &frame);
            require(length == (first < put ? kept[first] : 0));
            for (size_t at = 0; at < length; at++)
                require(frame[at] == (uint8_t)first);
            first += length > 0;
        } else if (frames_keep(&frames, made, length) == 0) {
            kept[put++] = length;
        }
        free(made);
    }
    frames_free(&frames);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    const uint8_t *end = memchr(bytes, '\n', count);
    size_t length = end ? (size_t)(end - bytes) : count;
    struct shape_rules rules[2];
    char *line = malloc(length + 1);

    require(line != NULL);
    memcpy(line, bytes, length);
    line[length] = 0;
    if (command_parse(line, rules) == COMMAND_SET)
        for (int way = 0; way < 2; way++)
            use_line(&rules[way], bytes + length, count - length);
    use_store(bytes + length, count - length);
    free(line);
    return 0;
}
