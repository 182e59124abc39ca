/*
 * The streams of a move's memory: from `wherry-pager send` at the source to `wherry-pager receive` at the destination.
 *
 * One or more TCP connections, already authenticated by who started the programs. Each carries frames, in order:
 *
 *      0      4     8          16      20       24    28         32        32 + length
 *      +------+-----+----------+-------+--------+-----+----------+---- - - ---+
 *      | type | pid | address  | pages | length | crc | sequence | payload    |    integers big-endian
 *      +------+-----+----------+-------+--------+-----+----------+---- - - ---+
 *
 *   D  `pages` pages from `address` on of process `pid`, as its own PID namespace counts; the payload is their contents
 *   C  the same, compressed (compress.h); the payload is shorter than the contents
 *   Z  these pages are zero, or a hole, from now on; no payload
 *   X  process `pid` has ended, or called exec: its pages so far are void
 *   R  the end of round `address` (1, 2, …) on this connection; pages sent again later come after the answer
 *   L  the end of the last pass, `address`; every page of the node's pageable memory has its last contents now
 *   A  from the destination, on the first connection only: R or L number `address` has come on all connections, and
 *      every frame before it was whole
 *
 * With post-copy the last pass ends otherwise, and the connections stay:
 *
 *   M  which of the 512 pages from `address` on, a multiple of 2 MiB, have contents that come later; the payload is a
 *      bit for each, in 8 integers, the lowest bit of the first for the first page; never of an object
 *   P  as L, but for the pages of M. After its answer come D, C and Z of these only, each page once, and within 2 MiB
 *   Q  from the destination, on the first connection, as is F: a process waits for this page; it is not an error if the
 *      page is on its way
 *   F  nothing is needed any more
 *
 * Between two ends each page comes at most once, so connections need no order among them; they end the same rounds.
 * `crc` is the CRC-32C of the payload, 0 without one, and on the wire xor that of the header's other 28 bytes, so a bit
 * that changes anywhere is seen. `sequence` counts the frames of a connection and direction from 0. A frame that breaks
 * any rule here ends the move: the end that reads it exits, and the other end sees its connection close.
 *
 * A `pid` of 2^31 or more is an object's, memory that processes share or of huge pages, whose addresses count from its own
 * beginning (objects.h).
 *
 * Where both ends have a key, each frame is sealed (frame_seal.h), and 16 or 32 bytes longer:
 *
 *      0                  32       48                 64              64 + length
 *      +------------------+--------+------------------+----- - - -----+
 *      | encrypted header | tag    | tag of payload   | encrypted     |    the last two only with a payload
 *      +------------------+--------+------------------+----- - - -----+
 *
 * Pageable memory is the memory that CRIU restores lazily: private, anonymous, neither locked nor of huge pages
 * (MAP_HUGETLB).
 */
#ifndef WHERRY_PAGER_STREAM_H
#define WHERRY_PAGER_STREAM_H

#include <stdint.h>

enum {
    STREAM_HEADER = 32,
    STREAM_PAGE = 4096,
    STREAM_PAGES_MAX = 256,    /* in one D or C: 1 MiB */
    STREAM_BLOCK = 512,        /* pages of an M */
    STREAM_BITS = STREAM_BLOCK / 8,
    STREAM_CONNECTIONS_MAX = 16,
};

#define STREAM_OBJECTS UINT32_C(0x80000000) /* the `pid` of objects: this, and more */

struct stream_frame { /* crc: of the payload */
    uint32_t type, pid;
    uint64_t address;
    uint32_t pages, length, crc, sequence;
};

void stream_encode(const struct stream_frame *frame, uint8_t bytes[STREAM_HEADER]);
/*
 * 0, or -EPROTO: an unknown type, or values that no frame of this type may have; of a frame without payload any change.
 * The sequence is the caller's to check, and the payload, which has another `crc` also when the header has changed.
 */
int stream_decode(const uint8_t bytes[STREAM_HEADER], struct stream_frame *frame);

#endif
