/*
 * The frames that a hold keeps, oldest first, up to a limit of bytes.
 *
 *   bytes:  | length u16 | frame ... | length u16 | frame ... |
 *             oldest                                            <- the next is kept here
 */
#ifndef WHERRY_HOLD_FRAME_STORE_H
#define WHERRY_HOLD_FRAME_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wherry/buffer.h"

enum { FRAME_MAX = 65535 };

struct frames {
    struct buffer bytes;
    size_t limit;
};

/* Keeps a copy. Returns 0, -ENOSPC at the limit, -EMSGSIZE above FRAME_MAX, or -ENOMEM: then the frame is lost. */
int frames_keep(struct frames *frames, const uint8_t *frame, size_t length);
/* Takes the oldest frame: its length, 0 when there is none. *frame is valid until the next call. */
size_t frames_take(struct frames *frames, const uint8_t **frame);
/*
 * True for an Ethernet frame that carries data of a program: IPv4 with a payload in TCP, or UDP. Frames that a kernel
 * sends by itself (an acknowledgement, ARP, ICMP) do not. `length` may be less than the frame's, but has the headers.
 */
bool frame_has_data(const uint8_t *frame, size_t length);
/*
 * True when two frames are the same one, seen twice: equal but for the checksum of UDP, which a link may have left out.
 */
bool frame_is_same(const uint8_t *one, size_t one_length, const uint8_t *other, size_t other_length);
void frames_free(struct frames *frames);

#endif
