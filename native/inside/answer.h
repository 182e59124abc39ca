/*
 * An answer of the daemon: HTTP/1.1, whole, its body lines of `name=value`. Pure functions, which trust no byte of it.
 */
#ifndef WHERRY_INSIDE_ANSWER_H
#define WHERRY_INSIDE_ANSWER_H

#include <stddef.h>

struct answer {
    int status;
    const char *body;
    size_t length;
};

/* Finds status and body in bytes that were read to the connection's end. 0; -EAGAIN: cut off; -EPROTO: no answer. */
int answer_parse(const char *bytes, size_t count, struct answer *answer);

/* The value of the first line of that name, without an end of its own; NULL when there is none. */
const char *answer_find(const struct answer *answer, const char *name, size_t *length);

/* Copies a value, shortened to fit, always ended; empty when there is none. Returns whether there is one. */
int answer_text(const struct answer *answer, const char *name, char *to, size_t room);

/* A value as a number, [-]digits[.digits]; `otherwise` when it is none. */
double answer_number(const struct answer *answer, const char *name, double otherwise);

#endif
