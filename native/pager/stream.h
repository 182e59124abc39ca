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
 *   Z  these pages are zero, or a hole, from now on; no payload
 *   X  process `pid` has ended, or called exec: what came of it is void
 *   R  the end of round `address` (1, 2, …) on this connection; what is sent again later comes after the answer
 *   L  the end of the last pass, `address`; every page of the node's pageable memory has its last contents now
 *   A  from the destination, on the first connection only: R or L number `address` has come on all connections, and
 *      every frame before it was whole
 *
 * Between two ends each page comes at most once, so connections need no order among them. `crc` is the CRC-32C of the
 * payload, `sequence` counts the frames of a connection and direction from 0. A frame that breaks any rule here ends
 * the move: whoever reads it exits, and the other end sees its connection close.
 *
 * Pageable memory is what CRIU restores lazily: private, anonymous, neither locked nor of huge pages (MAP_HUGETLB).
 */
#ifndef WHERRY_PAGER_STREAM_H
#define WHERRY_PAGER_STREAM_H

#include <stdint.h>

enum {
    STREAM_HEADER = 32,
    STREAM_PAGE = 4096,
    STREAM_PAGES_MAX = 256,    /* in one D: 1 MiB */
    STREAM_CONNECTIONS_MAX = 16,
};

struct stream_frame {
    uint32_t type, pid;
    uint64_t address;
    uint32_t pages, length, crc, sequence;
};

void stream_encode(const struct stream_frame *frame, uint8_t bytes[STREAM_HEADER]);
/* 0, or -EPROTO: an unknown type, or values that no frame of this type may have. The sequence is the caller's to check. */
int stream_decode(const uint8_t bytes[STREAM_HEADER], struct stream_frame *frame);

#endif
