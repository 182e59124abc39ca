#include "stream.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

static const uint64_t ADDRESS_END = 1UL << 57;

void stream_encode(const struct stream_frame *frame, uint8_t bytes[STREAM_HEADER])
{
    const uint32_t first[] = {htobe32(frame->type), htobe32(frame->pid)};
    const uint64_t address = htobe64(frame->address);
    const uint32_t rest[] = {htobe32(frame->pages), htobe32(frame->length), htobe32(frame->crc),
                             htobe32(frame->sequence)};

    memcpy(bytes, first, sizeof(first));
    memcpy(bytes + 8, &address, sizeof(address));
    memcpy(bytes + 16, rest, sizeof(rest));
}

/* Whether the frame speaks of pages that a process may have. */
static int has_pages(const struct stream_frame *frame)
{
    uint64_t size = (uint64_t)frame->pages * STREAM_PAGE;

    return frame->pid && frame->pages && frame->address % STREAM_PAGE == 0 && frame->address < ADDRESS_END &&
           size <= ADDRESS_END - frame->address;
}

static int is_valid(const struct stream_frame *frame)
{
    switch (frame->type) {
    case 'D':
        return has_pages(frame) && frame->pages <= STREAM_PAGES_MAX && frame->length == frame->pages * STREAM_PAGE;
    case 'Z':
        return has_pages(frame) && !frame->length && !frame->crc;
    case 'X':
        return frame->pid && !frame->address && !frame->pages && !frame->length && !frame->crc;
    case 'R':
    case 'L':
    case 'A':
        return frame->address && !frame->pid && !frame->pages && !frame->length && !frame->crc;
    default:
        return 0;
    }
}

int stream_decode(const uint8_t bytes[STREAM_HEADER], struct stream_frame *frame)
{
    uint32_t first[2], rest[4];
    uint64_t address;

    memcpy(first, bytes, sizeof(first));
    memcpy(&address, bytes + 8, sizeof(address));
    memcpy(rest, bytes + 16, sizeof(rest));
    *frame = (struct stream_frame){.type = be32toh(first[0]),
                                   .pid = be32toh(first[1]),
                                   .address = be64toh(address),
                                   .pages = be32toh(rest[0]),
                                   .length = be32toh(rest[1]),
                                   .crc = be32toh(rest[2]),
                                   .sequence = be32toh(rest[3])};
    return is_valid(frame) ? 0 : -EPROTO;
}
