/* See wire.h. */
#include "wire.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <endian.h>
#include <errno.h>
#include <string.h>

enum { CHECK_AT = 24 };
static const uint64_t OFFSET_END = UINT64_C(1) << 63;

uint64_t wire_sum(const void *payload, size_t length)
{
    return length ? XXH3_64bits(payload, length) : 0;
}

static uint64_t check_of(const uint8_t bytes[WIRE_HEADER], uint64_t sequence, uint64_t sum)
{
    uint8_t all[WIRE_HEADER];

    memcpy(all, bytes, CHECK_AT);
    memcpy(all + CHECK_AT, &sum, sizeof(sum));
    return XXH3_64bits_withSeed(all, sizeof(all), sequence);
}

void wire_encode(const struct wire_frame *frame, uint64_t sequence, uint64_t sum, uint8_t bytes[WIRE_HEADER])
{
    const uint32_t first[] = {htobe32(frame->type), htobe32(frame->length)};
    const uint64_t rest[] = {htobe64(frame->number), htobe64(frame->at)};
    uint64_t check;

    memcpy(bytes, first, sizeof(first));
    memcpy(bytes + sizeof(first), rest, sizeof(rest));
    check = htobe64(check_of(bytes, sequence, sum));
    memcpy(bytes + CHECK_AT, &check, sizeof(check));
}

static int is_valid(const struct wire_frame *frame)
{
    if (!frame->number)
        return 0;
    switch (frame->type) {
    case 'I':
        return !frame->at && frame->length && frame->length <= WIRE_META_MAX;
    case 'L':
    case 'U':
        return frame->at > 1 && frame->length && frame->length <= WIRE_NAME_MAX;
    case 'X':
        return frame->number > 1 && !frame->at && !frame->length;
    case 'S':
        return frame->at < OFFSET_END && !frame->length;
    case 'D':
        return frame->at % PAGE_SUMS_PAGE == 0 && frame->length && frame->length % PAGE_SUMS_PAGE == 0 &&
               frame->length <= WIRE_DATA_MAX && frame->at <= OFFSET_END - frame->length &&
               frame->at / PAGE_SUMS_WINDOW == (frame->at + frame->length - 1) / PAGE_SUMS_WINDOW;
    case 'H':
        return frame->at % PAGE_SUMS_PAGE == 0 && frame->at < OFFSET_END && frame->length == sizeof(uint64_t);
    case 'E':
        return frame->length == 2 * sizeof(uint64_t);
    case 'R':
    case 'A':
        return !frame->at && !frame->length;
    default:
        return 0;
    }
}

int wire_decode(const uint8_t bytes[WIRE_HEADER], struct wire_frame *frame)
{
    uint32_t first[2];
    uint64_t rest[2];

    memcpy(first, bytes, sizeof(first));
    memcpy(rest, bytes + sizeof(first), sizeof(rest));
    *frame = (struct wire_frame){be32toh(first[0]), be32toh(first[1]), be64toh(rest[0]), be64toh(rest[1])};
    return is_valid(frame) ? 0 : -EPROTO;
}

int wire_check(const uint8_t bytes[WIRE_HEADER], uint64_t sequence, const void *payload, size_t length)
{
    uint64_t check;

    memcpy(&check, bytes + CHECK_AT, sizeof(check));
    return be64toh(check) == check_of(bytes, sequence, wire_sum(payload, length)) ? 0 : -EBADMSG;
}

void wire_put_number(uint8_t to[sizeof(uint64_t)], uint64_t number)
{
    number = htobe64(number);
    memcpy(to, &number, sizeof(number));
}

uint64_t wire_number(const uint8_t bytes[sizeof(uint64_t)])
{
    uint64_t number;

    memcpy(&number, bytes, sizeof(number));
    return be64toh(number);
}

int wire_name(const void *payload, size_t length, char name[WIRE_NAME_MAX + 1])
{
    if (!length || length > WIRE_NAME_MAX || memchr(payload, '/', length) || memchr(payload, 0, length))
        return -EPROTO;
    memcpy(name, payload, length);
    name[length] = 0;
    return strcmp(name, ".") && strcmp(name, "..") ? 0 : -EPROTO;
}
