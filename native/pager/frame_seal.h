/*
 * Frames of a move's memory (stream.h), encrypted and authenticated by AES-256-GCM, for streams that leave the machine.
 *
 * A move has one key, which is used for nothing else, and each half of a frame a nonce of its own:
 *
 *      0                                   4                          12
 *      +-----------------------------------+--------------------------+
 *      | connection | to the source | half | number of the frame      |    big-endian: 30 bits, 1, 1; 64
 *      +-----------------------------------+--------------------------+
 *
 * so a frame that is changed, left out, repeated, out of order or of another connection has a wrong tag. Nothing of a
 * frame is in clear but its length.
 */
#ifndef WHERRY_PAGER_FRAME_SEAL_H
#define WHERRY_PAGER_FRAME_SEAL_H

#include <stddef.h>
#include <wherry/key.h>

#include "stream.h"

enum {
    FRAME_KEY = KEY_SIZE,
    FRAME_TAG = 16,
    SEALED_HEADER = STREAM_HEADER + FRAME_TAG,
};

struct frame_seal; /* one direction of a connection; one thread at a time */

/* The direction in which frames are closed, or opened. NULL without memory or without the cipher. */
struct frame_seal *frame_seal_new(const uint8_t key[FRAME_KEY], unsigned connection, int to_source, int closes);
void frame_seal_free(struct frame_seal *seal);

/* The next frame: `sealed` gets the header with its tag, the payload is encrypted in place. 0 or -EIO. */
int frame_seal_close(struct frame_seal *seal, const uint8_t header[STREAM_HEADER], uint8_t sealed[SEALED_HEADER],
                     uint8_t *payload, uint32_t length, uint8_t tag[FRAME_TAG]);
/* The next frame's header; 0 or -EBADMSG. */
int frame_seal_open_header(struct frame_seal *seal, const uint8_t sealed[SEALED_HEADER], uint8_t header[STREAM_HEADER]);
/* The payload of that frame, in place; 0 or -EBADMSG. */
int frame_seal_open_payload(struct frame_seal *seal, uint8_t *payload, uint32_t length, const uint8_t tag[FRAME_TAG]);

#endif
