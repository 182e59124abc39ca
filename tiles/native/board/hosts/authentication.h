/*
 * The mutual authentication of two boards at the start of every TCP connection. Both have been given the same secret;
 * it is never sent, and no message can be replayed on another connection.
 *
 *   leader   -> follower   32 random bytes
 *   follower -> leader     struct greeting: its identity, random bytes of its own, proof
 *   leader   -> follower   struct greeting
 *
 * The proof is HMAC-SHA-256 (RFC 2104, FIPS 180-4), keyed by the secret, over the side's name, the other's random
 * bytes and the greeting before it. So a peer without the secret receives only random bytes, and a recorded proof is
 * worthless on another connection. Later frames are not encrypted.
 */
#ifndef WHERRY_MANYCORE_BOARD_HOSTS_AUTHENTICATION_H
#define WHERRY_MANYCORE_BOARD_HOSTS_AUTHENTICATION_H

#include <assert.h>

#include "channel.h"

#define NONCE_SIZE 32
#define PROOF_SIZE 32
#define SECRET_MAX 64 /* bytes of the secret that count */

struct hello {
    uint32_t host, build, xfeatures, xsize;
};

struct greeting {
    struct frame_head head; /* FRAME_HELLO; `received`: the last number that has come from the other side */
    struct hello hello;
    uint8_t nonce[NONCE_SIZE], proof[PROOF_SIZE];
};

static_assert(sizeof(struct greeting) == sizeof(struct frame_head) + 16 + NONCE_SIZE + PROOF_SIZE, "as it is sent");

struct secret {
    uint8_t bytes[SECRET_MAX];
    size_t size;
};

/* The leader: challenges a new connection. Returns 0 and the nonce that was used, or negative errno. */
int auth_challenge(int fd, uint8_t nonce[NONCE_SIZE]);
/* Whether a greeting answers that. Returns 0 or negative errno. */
int auth_check(const struct secret *secret, const struct greeting *theirs, const uint8_t nonce[NONCE_SIZE]);
/* The leader: sends its own greeting. Returns 0 or negative errno. */
int auth_answer(int fd, const struct secret *secret, const struct hello *mine, uint64_t received,
                const struct greeting *theirs, const uint8_t nonce[NONCE_SIZE]);
/* The follower: all three messages. Returns 0 and the greeting of the leader, or negative errno. */
int auth_join(int fd, const struct secret *secret, const struct hello *mine, uint64_t received,
              struct greeting *theirs);

#endif
