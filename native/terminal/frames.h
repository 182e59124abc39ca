/*
 * The input of a program that has a terminal: the keys of its user, and the size of the user's own terminal.
 *
 *   0      1                3
 *   +------+----------------+------ - -+
 *   | type | length u16 (BE)| payload  |     D: bytes typed; W: rows u16 (BE), columns u16 (BE)
 *   +------+----------------+------ - -+
 */
#ifndef WHERRY_TERMINAL_FRAMES_H
#define WHERRY_TERMINAL_FRAMES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { TERMINAL_HEADER = 3, TERMINAL_FRAME_MAX = TERMINAL_HEADER + 65535 };

struct terminal_frame {
    uint8_t type;
    const uint8_t *bytes; /* of D */
    size_t length;
    uint16_t rows, columns; /* of W */
};

/* The frame at the start of `bytes`: its size, 0 when more bytes are needed, -EPROTO for anything else. */
ssize_t terminal_parse_frame(const uint8_t *bytes, size_t count, struct terminal_frame *frame);

#endif
