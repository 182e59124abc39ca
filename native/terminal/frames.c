/* See frames.h. */
#include "frames.h"

#include <errno.h>

static uint16_t number_at(const uint8_t *bytes)
{
    return (uint16_t)(bytes[0] << 8 | bytes[1]);
}

ssize_t terminal_parse_frame(const uint8_t *bytes, size_t count, struct terminal_frame *frame)
{
    if (count && bytes[0] != 'D' && bytes[0] != 'W')
        return -EPROTO;
    if (count < TERMINAL_HEADER)
        return 0;
    *frame = (struct terminal_frame){.type = bytes[0], .length = number_at(bytes + 1)};
    if (frame->type == 'W' && frame->length != 4)
        return -EPROTO;
    if (count < TERMINAL_HEADER + frame->length)
        return 0;
    frame->bytes = bytes + TERMINAL_HEADER;
    if (frame->type == 'W') {
        frame->rows = number_at(frame->bytes);
        frame->columns = number_at(frame->bytes + 2);
    }
    return (ssize_t)(TERMINAL_HEADER + frame->length);
}
