/* See wherry/seal.h. */
#include "wherry/seal.h"

#include <errno.h>
#include <nettle/chacha-poly1305.h>
#include <nettle/memops.h>

static int begin(struct seal *seal, struct chacha_poly1305_ctx *cipher, const uint8_t *header)
{
    uint8_t nonce[CHACHA_POLY1305_NONCE_SIZE] = {0};

    if (seal->count >= SEAL_FRAMES_MAX)
        return -EOVERFLOW;
    for (int i = 0; i < 8; i++)
        nonce[CHACHA_POLY1305_NONCE_SIZE - 1 - i] = (uint8_t)(seal->count >> 8 * i);
    seal->count++;
    chacha_poly1305_set_key(cipher, seal->key);
    chacha_poly1305_set_nonce(cipher, nonce);
    chacha_poly1305_update(cipher, WIRE_HEADER, header);
    return 0;
}

ssize_t seal_close(struct seal *seal, uint8_t *frame, uint8_t type, uint32_t length)
{
    struct chacha_poly1305_ctx cipher;
    uint8_t *payload = frame + WIRE_HEADER;
    int error;

    _Static_assert(WIRE_TAG == CHACHA_POLY1305_DIGEST_SIZE && SEAL_KEY == CHACHA_POLY1305_KEY_SIZE, "of the cipher");
    wire_put_header(frame, type, length);
    error = begin(seal, &cipher, frame);
    if (error < 0)
        return error;
    chacha_poly1305_encrypt(&cipher, length, payload, payload);
    chacha_poly1305_digest(&cipher, WIRE_TAG, payload + length);
    return (ssize_t)(WIRE_HEADER + (size_t)length + WIRE_TAG);
}

int seal_open(struct seal *seal, uint8_t *frame, uint32_t length)
{
    struct chacha_poly1305_ctx cipher;
    uint8_t *payload = frame + WIRE_HEADER, tag[WIRE_TAG];
    int error = begin(seal, &cipher, frame);

    if (error < 0)
        return error;
    chacha_poly1305_decrypt(&cipher, length, payload, payload);
    chacha_poly1305_digest(&cipher, WIRE_TAG, tag);
    return memeql_sec(tag, payload + length, WIRE_TAG) ? 0 : -EBADMSG;
}
