/*
 * libFuzzer on a stranger's bytes in the handshake and in a session (wherry/handshake.h, wherry/seal.h).
 *
 *   clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined -I native/include \
 *         native/fuzz/fuzz_handshake.c native/lib/{wire,inherited,number,handshake,seal}.c -lnettle \
 *         -o fuzz_handshake && ./fuzz_handshake -max_len=4096
 *
 * The invariants: an agent admits nobody and a client trusts nobody by chance, nor does a session take a frame;
 * messages that one side makes the other takes, and a whole frame is read only inside its bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "wherry/handshake.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static const uint8_t key[WIRE_KEY] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde";

static void require(int condition)
{
    if (!condition)
        abort();
}

static void try_hello(const struct wire_frame *frame)
{
    uint8_t challenge[WIRE_CHALLENGE], answer[WIRE_ANSWER], proof[WIRE_PROOF], expected[WIRE_PROOF];
    struct wire_frame reply = {.type = 'H', .length = WIRE_ANSWER, .payload = answer};
    struct seals agent, client;

    require(handshake_challenge(challenge) == 0);
    require(handshake_check(key, challenge, frame, proof, &agent) < 0);
    if (handshake_answer(key, frame, answer, expected, &client) == 0) {
        require(handshake_verify_agent(expected, frame) < 0);
        require(handshake_check(key, frame->payload, &reply, proof, &agent) == 0);
        require(memcmp(proof, expected, sizeof proof) == 0 && memcmp(&agent, &client, sizeof agent) == 0);
    }
}

static void try_frame(const uint8_t *bytes, size_t size, const struct wire_frame *frame)
{
    struct seal seal = {.key = {1}}, same = seal, stranger = seal;
    uint8_t *exact = malloc(size);

    require(exact != NULL);
    memcpy(exact, bytes, size);
    require(seal_open(&stranger, exact, frame->length) < 0);
    memcpy(exact, bytes, size);
    require(seal_close(&seal, exact, frame->type, frame->length) == (ssize_t)size);
    require(seal_open(&same, exact, frame->length) == 0);
    require(memcmp(exact, bytes, size - WIRE_TAG) == 0);
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct wire_frame frame;
    size_t wanted;
    ssize_t size;

    if (wire_parse_frame(bytes, count, false, &frame, &wanted) > 0)
        try_hello(&frame);
    size = wire_parse_frame(bytes, count, true, &frame, &wanted);
    if (size > 0)
        try_frame(bytes, (size_t)size, &frame);
    return 0;
}
