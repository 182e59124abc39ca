/*
 * How a node's agent and its client prove to each other that they know the node's key, and the keys of their session.
 * The first frames of a connection, in clear (wherry/wire.h):
 *
 *   agent  -> client   C   version (1 byte) | nonce (32)
 *   client -> agent    H   version (1 byte) | nonce (32) | proof of the client (32)
 *   agent  -> client   A   proof of the agent (32);   or F "reason" for another version
 *
 * Everything secret is derived by HKDF-SHA256 (RFC 5869) from the node's key, as its 64 hex digits, with the salt
 * "agent's nonce | client's nonce" and an info of its own:
 *
 *   "wherry 3 client proof", "wherry 3 agent proof", "wherry 3 client to agent", "wherry 3 agent to client"
 *
 * So nobody without the key can make a proof, an overheard proof is worth nothing on another connection, and no side
 * can be made to prove for the other. With the key, recorded traffic can be read later: there is no forward secrecy.
 */
#ifndef WHERRY_HANDSHAKE_H
#define WHERRY_HANDSHAKE_H

#include "wherry/seal.h"

enum { HANDSHAKE_NONCE = 32, HANDSHAKE_SIZE = 32 };

struct proofs {
    uint8_t client[HANDSHAKE_SIZE], agent[HANDSHAKE_SIZE];
};

/* The two directions of a session. */
struct seals {
    struct seal to_agent, to_client;
};

/* Writes the payload of C, whose nonce is new. Returns 0 or -EIO. */
int handshake_challenge(uint8_t payload[WIRE_CHALLENGE]);

/*
 * The agent's part: checks an H that answers the challenge, gives the payload of A and the session's keys.
 * Returns 0, -EPROTO (no H), -EPROTONOSUPPORT (another version), -EACCES (the proof is wrong).
 */
int handshake_check(const uint8_t key[WIRE_KEY], const uint8_t challenge[WIRE_CHALLENGE],
                    const struct wire_frame *frame, uint8_t proof[HANDSHAKE_SIZE], struct seals *seals);

/*
 * The client's part: answers a C with the payload of H; gives the proof that A must have, and the session's keys.
 * Returns 0, -EPROTO (no C), -EPROTONOSUPPORT (another version), -EIO (no random bytes).
 */
int handshake_answer(const uint8_t key[WIRE_KEY], const struct wire_frame *frame, uint8_t answer[WIRE_ANSWER],
                     uint8_t expected[HANDSHAKE_SIZE], struct seals *seals);

/* 0 when A has the proof, else -EACCES. The time taken does not depend on where the two differ. */
int handshake_verify_agent(const uint8_t expected[HANDSHAKE_SIZE], const struct wire_frame *frame);

#endif
