/* See frame_seal.h. */
#include "frame_seal.h"

#include <endian.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

enum { NONCE = 12, HEADER_HALF = 0, PAYLOAD_HALF = 1 };

struct frame_seal {
    EVP_CIPHER_CTX *cipher;
    uint32_t which; /* the nonce's first word, without the half */
    uint64_t count; /* frames so far */
};

struct frame_seal *frame_seal_new(const uint8_t key[FRAME_KEY], unsigned connection, int to_source, int closes)
{
    struct frame_seal *seal = calloc(1, sizeof(*seal));

    if (!seal)
        return NULL;
    seal->which = connection << 2 | (to_source ? 2U : 0U);
    if (!(seal->cipher = EVP_CIPHER_CTX_new()) ||
        EVP_CipherInit_ex(seal->cipher, EVP_aes_256_gcm(), NULL, key, NULL, closes) != 1) {
        frame_seal_free(seal);
        return NULL;
    }
    return seal;
}

void frame_seal_free(struct frame_seal *seal)
{
    if (seal)
        EVP_CIPHER_CTX_free(seal->cipher);
    free(seal);
}

/* One half of a frame, up to its tag. */
static int run(struct frame_seal *seal, uint64_t number, uint32_t half, const uint8_t *from, uint8_t *into, size_t count)
{
    uint32_t which = htobe32(seal->which | half);
    uint8_t nonce[NONCE];
    int done;

    number = htobe64(number);
    memcpy(nonce, &which, sizeof(which));
    memcpy(nonce + sizeof(which), &number, sizeof(number));
    return EVP_CipherInit_ex(seal->cipher, NULL, NULL, NULL, nonce, -1) == 1 &&
           EVP_CipherUpdate(seal->cipher, into, &done, from, (int)count) == 1 && done == (int)count;
}

static int close_half(struct frame_seal *seal, uint32_t half, const uint8_t *from, uint8_t *into, size_t count,
                      uint8_t tag[FRAME_TAG])
{
    uint8_t rest[FRAME_TAG];
    int done;

    return run(seal, seal->count, half, from, into, count) && EVP_CipherFinal_ex(seal->cipher, rest, &done) == 1 &&
           EVP_CIPHER_CTX_ctrl(seal->cipher, EVP_CTRL_AEAD_GET_TAG, FRAME_TAG, tag) == 1;
}

static int open_half(struct frame_seal *seal, uint64_t number, uint32_t half, const uint8_t *from, uint8_t *into,
                     size_t count, const uint8_t tag[FRAME_TAG])
{
    uint8_t rest[FRAME_TAG], expected[FRAME_TAG];
    int done;

    memcpy(expected, tag, FRAME_TAG);
    return run(seal, number, half, from, into, count) &&
           EVP_CIPHER_CTX_ctrl(seal->cipher, EVP_CTRL_AEAD_SET_TAG, FRAME_TAG, expected) == 1 &&
           EVP_CipherFinal_ex(seal->cipher, rest, &done) == 1;
}

int frame_seal_close(struct frame_seal *seal, const uint8_t header[STREAM_HEADER], uint8_t sealed[SEALED_HEADER],
                     uint8_t *payload, uint32_t length, uint8_t tag[FRAME_TAG])
{
    int is_closed = close_half(seal, HEADER_HALF, header, sealed, STREAM_HEADER, sealed + STREAM_HEADER) &&
                    (!length || close_half(seal, PAYLOAD_HALF, payload, payload, length, tag));

    seal->count++;
    return is_closed ? 0 : -EIO;
}

int frame_seal_open_header(struct frame_seal *seal, const uint8_t sealed[SEALED_HEADER], uint8_t header[STREAM_HEADER])
{
    if (!open_half(seal, seal->count, HEADER_HALF, sealed, header, STREAM_HEADER, sealed + STREAM_HEADER))
        return -EBADMSG;
    seal->count++;
    return 0;
}

int frame_seal_open_payload(struct frame_seal *seal, uint8_t *payload, uint32_t length, const uint8_t tag[FRAME_TAG])
{
    return open_half(seal, seal->count - 1, PAYLOAD_HALF, payload, payload, length, tag) ? 0 : -EBADMSG;
}
