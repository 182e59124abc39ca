/* See authentication.h. */
#include "authentication.h"

#include <errno.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#define NAME_OF_LEADER "leader"
#define NAME_OF_FOLLOWER "follow"

static void prove(const struct secret *secret, const char *name, const uint8_t asked[NONCE_SIZE],
                  const struct greeting *greeting, uint8_t proof[PROOF_SIZE])
{
    struct hmac_sha256_ctx hmac;

    hmac_sha256_set_key(&hmac, secret->size, secret->bytes);
    hmac_sha256_update(&hmac, strlen(name), (const uint8_t *)name);
    hmac_sha256_update(&hmac, NONCE_SIZE, asked);
    hmac_sha256_update(&hmac, offsetof(struct greeting, proof), (const uint8_t *)greeting);
    hmac_sha256_digest(&hmac, PROOF_SIZE, proof);
}

static int say(int fd, const void *bytes, size_t size)
{
    return send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size ? 0 : -EPIPE;
}

static int hear(int fd, void *bytes, size_t size)
{
    return recv(fd, bytes, size, MSG_WAITALL) == (ssize_t)size ? 0 : -ETIMEDOUT;
}

static int make_nonce(uint8_t nonce[NONCE_SIZE])
{
    return getrandom(nonce, NONCE_SIZE, 0) == NONCE_SIZE ? 0 : -EIO;
}

static int greet(int fd, const struct secret *secret, const char *name, const struct hello *mine, uint64_t received,
                 const uint8_t asked[NONCE_SIZE], const uint8_t nonce[NONCE_SIZE])
{
    struct greeting greeting = {
        .head = {.size = sizeof(greeting) - sizeof(greeting.head), .kind = FRAME_HELLO, .received = received},
        .hello = *mine,
    };

    memcpy(greeting.nonce, nonce, NONCE_SIZE);
    prove(secret, name, asked, &greeting, greeting.proof);
    return say(fd, &greeting, sizeof(greeting));
}

static int check(const struct secret *secret, const char *name, const uint8_t asked[NONCE_SIZE],
                 const struct greeting *greeting)
{
    uint8_t proof[PROOF_SIZE];

    if (greeting->head.kind != FRAME_HELLO || greeting->head.size != sizeof(*greeting) - sizeof(greeting->head))
        return -EPROTO;
    prove(secret, name, asked, greeting, proof);
    return memeql_sec(proof, greeting->proof, PROOF_SIZE) ? 0 : -EACCES;
}

int auth_challenge(int fd, uint8_t nonce[NONCE_SIZE])
{
    int error = make_nonce(nonce);

    return error == 0 ? say(fd, nonce, NONCE_SIZE) : error;
}

int auth_check(const struct secret *secret, const struct greeting *theirs, const uint8_t nonce[NONCE_SIZE])
{
    return check(secret, NAME_OF_FOLLOWER, nonce, theirs);
}

int auth_answer(int fd, const struct secret *secret, const struct hello *mine, uint64_t received,
                const struct greeting *theirs, const uint8_t nonce[NONCE_SIZE])
{
    return greet(fd, secret, NAME_OF_LEADER, mine, received, theirs->nonce, nonce);
}

int auth_join(int fd, const struct secret *secret, const struct hello *mine, uint64_t received, struct greeting *theirs)
{
    uint8_t asked[NONCE_SIZE], nonce[NONCE_SIZE];
    int error = hear(fd, asked, sizeof(asked));

    if (error == 0)
        error = make_nonce(nonce);
    if (error == 0)
        error = greet(fd, secret, NAME_OF_FOLLOWER, mine, received, asked, nonce);
    if (error == 0)
        error = hear(fd, theirs, sizeof(*theirs));
    return error == 0 ? check(secret, NAME_OF_LEADER, nonce, theirs) : error;
}
