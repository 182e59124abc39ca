/* See wherry/handshake.h. */
#include "wherry/handshake.h"

#include <errno.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <string.h>
#include <sys/random.h>

static int make_nonce(uint8_t nonce[HANDSHAKE_NONCE])
{
    return getrandom(nonce, HANDSHAKE_NONCE, 0) == HANDSHAKE_NONCE ? 0 : -EIO;
}

/* HKDF-Expand for as many bytes as the hash has: one block. */
static void expand(const uint8_t secret[SHA256_DIGEST_SIZE], const char *info, uint8_t out[SHA256_DIGEST_SIZE])
{
    static const uint8_t first = 1;
    struct hmac_sha256_ctx hmac;

    hmac_sha256_set_key(&hmac, SHA256_DIGEST_SIZE, secret);
    hmac_sha256_update(&hmac, strlen(info), (const uint8_t *)info);
    hmac_sha256_update(&hmac, 1, &first);
    hmac_sha256_digest(&hmac, SHA256_DIGEST_SIZE, out);
}

static void derive(const uint8_t key[WIRE_KEY], const uint8_t agent[HANDSHAKE_NONCE],
                   const uint8_t client[HANDSHAKE_NONCE], struct proofs *proofs, struct seals *seals)
{
    uint8_t salt[2 * HANDSHAKE_NONCE], secret[SHA256_DIGEST_SIZE];
    struct hmac_sha256_ctx hmac;

    _Static_assert(HANDSHAKE_SIZE == SHA256_DIGEST_SIZE && SEAL_KEY == SHA256_DIGEST_SIZE, "one block of HKDF each");
    memcpy(salt, agent, HANDSHAKE_NONCE);
    memcpy(salt + HANDSHAKE_NONCE, client, HANDSHAKE_NONCE);
    hmac_sha256_set_key(&hmac, sizeof salt, salt);
    hmac_sha256_update(&hmac, WIRE_KEY, key);
    hmac_sha256_digest(&hmac, sizeof secret, secret);
    *seals = (struct seals){0};
    expand(secret, "wherry 3 client proof", proofs->client);
    expand(secret, "wherry 3 agent proof", proofs->agent);
    expand(secret, "wherry 3 client to agent", seals->to_agent.key);
    expand(secret, "wherry 3 agent to client", seals->to_client.key);
}

/* Of a C or an H: the version comes first, so that another one's is recognised whatever follows it. */
static int check_version(const struct wire_frame *frame, uint8_t type, size_t length)
{
    if (frame->type != type)
        return -EPROTO;
    return frame->length == length && frame->payload[0] == WIRE_VERSION ? 0 : -EPROTONOSUPPORT;
}

int handshake_challenge(uint8_t payload[WIRE_CHALLENGE])
{
    payload[0] = WIRE_VERSION;
    return make_nonce(payload + 1);
}

int handshake_check(const uint8_t key[WIRE_KEY], const uint8_t challenge[WIRE_CHALLENGE],
                    const struct wire_frame *frame, uint8_t proof[HANDSHAKE_SIZE], struct seals *seals)
{
    struct proofs proofs;
    int error = check_version(frame, 'H', WIRE_ANSWER);

    if (error < 0)
        return error;
    derive(key, challenge + 1, frame->payload + 1, &proofs, seals);
    memcpy(proof, proofs.agent, HANDSHAKE_SIZE);
    return memeql_sec(proofs.client, frame->payload + 1 + HANDSHAKE_NONCE, HANDSHAKE_SIZE) ? 0 : -EACCES;
}

int handshake_answer(const uint8_t key[WIRE_KEY], const struct wire_frame *frame, uint8_t answer[WIRE_ANSWER],
                     uint8_t expected[HANDSHAKE_SIZE], struct seals *seals)
{
    struct proofs proofs;
    int error = check_version(frame, 'C', WIRE_CHALLENGE);

    answer[0] = WIRE_VERSION;
    if (error == 0)
        error = make_nonce(answer + 1);
    if (error < 0)
        return error;
    derive(key, frame->payload + 1, answer + 1, &proofs, seals);
    memcpy(answer + 1 + HANDSHAKE_NONCE, proofs.client, HANDSHAKE_SIZE);
    memcpy(expected, proofs.agent, HANDSHAKE_SIZE);
    return 0;
}

int handshake_verify_agent(const uint8_t expected[HANDSHAKE_SIZE], const struct wire_frame *frame)
{
    bool same = frame->type == 'A' && frame->length == HANDSHAKE_SIZE &&
                memeql_sec(expected, frame->payload, HANDSHAKE_SIZE);

    return same ? 0 : -EACCES;
}
