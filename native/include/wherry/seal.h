/*
 * Frames of a session, encrypted and authenticated in place by ChaCha20-Poly1305 (RFC 8439):
 *
 *      0      1                5                    5 + length     5 + length + 16
 *      +------+----------------+------------------- - - -+---------------+
 *      | type | length (u32 BE)| encrypted payload       | tag           |
 *      +------+----------------+------------------- - - -+---------------+
 *
 * The header is authenticated with the payload. The nonce is four zero bytes and the frame's number in its direction
 * (u64 BE), from 0: a frame that is lost, repeated, changed or out of order has a wrong tag, and the session ends.
 * There is no second key for a session: it ends before frame 2^48, which no program's output reaches in a century.
 */
#ifndef WHERRY_SEAL_H
#define WHERRY_SEAL_H

#include "wherry/wire.h"

enum { SEAL_KEY = 32 };
#define SEAL_FRAMES_MAX (UINT64_C(1) << 48)

/* One direction of a session. */
struct seal {
    uint8_t key[SEAL_KEY];
    uint64_t count; /* frames so far */
};

/* Writes the header and the tag around the payload at frame + WIRE_HEADER. Returns the frame's size, or -EOVERFLOW. */
ssize_t seal_close(struct seal *seal, uint8_t *frame, uint8_t type, uint32_t length);
/* Decrypts a whole frame, as wire_parse_frame() found it. Returns 0, -EBADMSG or -EOVERFLOW. */
int seal_open(struct seal *seal, uint8_t *frame, uint32_t length);

#endif
