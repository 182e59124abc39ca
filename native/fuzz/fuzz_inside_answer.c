/*
 * libFuzzer on the answer that a program reads from the port that its environment names: anything may listen there.
 *
 *   clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined -I native/inside \
 *         native/fuzz/fuzz_inside_answer.c native/inside/answer.c -o fuzz_inside_answer && ./fuzz_inside_answer
 *
 * The invariants: found values lie within the bytes, texts end within their room, numbers have the value of their
 * digits.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../inside/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static void require(int condition)
{
    if (!condition)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    char *whole = malloc(count ? count : 1), text[8];
    struct answer answer;
    size_t length;
    int result;

    require(whole != NULL);
    memcpy(whole, bytes, count);
    result = answer_parse(whole, count, &answer);
    require(result == 0 || result == -EAGAIN || result == -EPROTO);
    if (result == 0) {
        const char *found = answer_find(&answer, "host", &length);

        require(answer.status >= 0 && answer.status <= 999);
        require(answer.body >= whole && answer.body + answer.length <= whole + count);
        require(!found || (found > answer.body && found + length <= answer.body + answer.length));
        require(answer_text(&answer, "host", text, sizeof text) == (found != NULL) && strlen(text) < sizeof text);
        require(found || answer_number(&answer, "host", 7.0) == 7.0);
        answer_number(&answer, "a", 0.0);
    }
    free(whole);
    return 0;
}
