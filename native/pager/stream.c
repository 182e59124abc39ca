#include "stream.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

enum { CRC_AT = 24, CRC_END = 28 };
static const uint64_t ADDRESS_END = 1UL << 57;

/* The CRC-32C of the header's other bytes. */
static uint32_t header_crc(const uint8_t bytes[STREAM_HEADER])
{
    static const uint32_t of_nibble[] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1,
        0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
        0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    uint32_t crc = ~0U;

    for (int i = 0; i < STREAM_HEADER; i++) {
        if (i >= CRC_AT && i < CRC_END)
            continue;
        crc ^= bytes[i];
        crc = of_nibble[crc & 15] ^ crc >> 4;
        crc = of_nibble[crc & 15] ^ crc >> 4;
    }
    return ~crc;
}

static void put(const struct stream_frame *frame, uint32_t crc, uint8_t bytes[STREAM_HEADER])
{
    const uint32_t first[] = {htobe32(frame->type), htobe32(frame->pid)};
    const uint64_t address = htobe64(frame->address);
    const uint32_t rest[] = {htobe32(frame->pages), htobe32(frame->length), htobe32(crc), htobe32(frame->sequence)};

    memcpy(bytes, first, sizeof(first));
    memcpy(bytes + 8, &address, sizeof(address));
    memcpy(bytes + 16, rest, sizeof(rest));
}

void stream_encode(const struct stream_frame *frame, uint8_t bytes[STREAM_HEADER])
{
    put(frame, 0, bytes);
    put(frame, frame->crc ^ header_crc(bytes), bytes);
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
    case 'C':
        return has_pages(frame) && frame->pages <= STREAM_PAGES_MAX && frame->length &&
               frame->length < frame->pages * STREAM_PAGE;
    case 'Z':
        return has_pages(frame) && !frame->length && !frame->crc;
    case 'M':
        return has_pages(frame) && frame->pages == STREAM_BLOCK && frame->length == STREAM_BITS &&
               frame->address % (STREAM_BLOCK * STREAM_PAGE) == 0 && frame->pid < STREAM_OBJECTS;
    case 'Q':
        return has_pages(frame) && frame->pages == 1 && !frame->length && !frame->crc;
    case 'F':
        return !frame->pid && !frame->address && !frame->pages && !frame->length && !frame->crc;
    case 'X':
        return frame->pid && !frame->address && !frame->pages && !frame->length && !frame->crc;
    case 'R':
    case 'L':
    case 'P':
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
                                   .crc = be32toh(rest[2]) ^ header_crc(bytes),
                                   .sequence = be32toh(rest[3])};
    return is_valid(frame) ? 0 : -EPROTO;
}
