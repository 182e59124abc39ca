/* See wherry/prove.h. */
#include "wherry/prove.h"

#include <errno.h>
#include <nettle/base16.h>
#include <nettle/hmac.h>
#include <sys/random.h>

int prove_challenge(uint8_t challenge[WIRE_KEY])
{
    uint8_t bytes[WIRE_KEY / 2];

    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return -EIO;
    base16_encode_update((char *)challenge, sizeof bytes, bytes);
    return 0;
}

void prove_answer(const uint8_t key[WIRE_KEY], const uint8_t challenge[WIRE_KEY], uint8_t answer[WIRE_KEY])
{
    uint8_t digest[SHA256_DIGEST_SIZE];
    struct hmac_sha256_ctx hmac;

    _Static_assert(BASE16_ENCODE_LENGTH(SHA256_DIGEST_SIZE) == WIRE_KEY, "an answer is as long as a key");
    hmac_sha256_set_key(&hmac, WIRE_KEY, key);
    hmac_sha256_update(&hmac, WIRE_KEY, challenge);
    hmac_sha256_digest(&hmac, sizeof digest, digest);
    base16_encode_update((char *)answer, sizeof digest, digest);
}
