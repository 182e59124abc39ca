/*
 * To know a node's key without saying it: the agent asks by a challenge that it never repeats, the client answers with
 * the HMAC-SHA256 (RFC 2104) of the challenge by the key. Key, challenge and answer are WIRE_KEY hex digits each, and
 * the digits, not the bytes that they mean, go into the HMAC. Who reads the wire learns nothing that lets him in.
 */
#ifndef WHERRY_PROVE_H
#define WHERRY_PROVE_H

#include "wherry/wire.h"

/* 0, or negative errno when the kernel has no random bytes. */
int prove_challenge(uint8_t challenge[WIRE_KEY]);
void prove_answer(const uint8_t key[WIRE_KEY], const uint8_t challenge[WIRE_KEY], uint8_t answer[WIRE_KEY]);

#endif
