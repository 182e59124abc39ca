/* See answer.h. No state. */
#include "answer.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

static const char LENGTH[] = "content-length:";

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The end of the line that begins at `at`, NULL when it has none before `end`. */
static const char *line_end(const char *at, const char *end)
{
    const char *found = memchr(at, '\n', (size_t)(end - at));

    return found && found > at && found[-1] == '\r' ? found - 1 : NULL;
}

/* The number in a content-length header; -1 when it is none. */
static long content_length(const char *at, const char *end)
{
    long value = 0;

    while (at < end && *at == ' ')
        at++;
    if (at == end || end - at > 9)
        return -1;
    for (; at < end; at++) {
        if (!is_digit(*at))
            return -1;
        value = value * 10 + (*at - '0');
    }
    return value;
}

int answer_parse(const char *bytes, size_t count, struct answer *answer)
{
    static const char version[] = "HTTP/1.1 ";
    const size_t begin = sizeof version - 1;
    const char *end = bytes + count, *at = bytes, *stop;
    long length = -1;

    if (count < begin + 3)
        return memcmp(bytes, version, count < begin ? count : begin) == 0 ? -EAGAIN : -EPROTO;
    if (memcmp(bytes, version, begin) != 0 || !is_digit(at[begin]) || !is_digit(at[begin + 1]) ||
        !is_digit(at[begin + 2]))
        return -EPROTO;
    answer->status = (at[begin] - '0') * 100 + (at[begin + 1] - '0') * 10 + at[begin + 2] - '0';
    while ((stop = line_end(at, end)) != NULL && stop != at) {
        if ((size_t)(stop - at) >= sizeof LENGTH && strncasecmp(at, LENGTH, sizeof LENGTH - 1) == 0)
            length = content_length(at + sizeof LENGTH - 1, stop);
        at = stop + 2;
    }
    if (!stop)
        return memchr(at, '\n', (size_t)(end - at)) ? -EPROTO : -EAGAIN;
    at += 2;
    if (length < 0)
        return -EPROTO;
    if (end - at < length)
        return -EAGAIN;
    answer->body = at;
    answer->length = (size_t)length;
    return 0;
}

const char *answer_find(const struct answer *answer, const char *name, size_t *length)
{
    const char *at = answer->body, *end = at + answer->length;
    size_t size = strlen(name);

    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));

        if (!stop)
            stop = end;
        if ((size_t)(stop - at) > size && at[size] == '=' && memcmp(at, name, size) == 0) {
            *length = (size_t)(stop - at) - size - 1;
            return at + size + 1;
        }
        at = stop < end ? stop + 1 : end;
    }
    return NULL;
}

int answer_text(const struct answer *answer, const char *name, char *to, size_t room)
{
    size_t length = 0;
    const char *found = answer_find(answer, name, &length);

    if (length >= room)
        length = room - 1;
    if (found)
        memcpy(to, found, length);
    to[found ? length : 0] = 0;
    return found != NULL;
}

/* By hand: strtod() takes the point of the program's locale. */
double answer_number(const struct answer *answer, const char *name, double otherwise)
{
    size_t length = 0, at = 0;
    const char *text = answer_find(answer, name, &length);
    double value = 0.0, unit = 1.0;
    bool negative = text && length > 1 && text[0] == '-', digits = false;

    for (at = negative; text && at < length && is_digit(text[at]); at++, digits = true)
        value = value * 10.0 + (text[at] - '0');
    if (text && at < length && text[at] == '.')
        for (at++; at < length && is_digit(text[at]); at++, digits = true)
            value += (text[at] - '0') * (unit /= 10.0);
    if (!digits || at < length || length > 64)
        return otherwise;
    return negative ? -value : value;
}
