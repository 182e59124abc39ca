/*
 * The stream of a node's files: from `wherry-tree send` at the source to `wherry-tree receive` at the destination.
 *
 * One TCP connection, already authenticated by who started the programs. It carries frames, in order:
 *
 *      0      4        8        16   24      32        32 + length
 *      +------+--------+--------+----+-------+---- - - ---+
 *      | type | length | number | at | check | payload    |    integers big-endian
 *      +------+--------+--------+----+-------+---- - - ---+
 *
 * An inode has a number, 1 (the directory itself), 2, 3, …, in the order in which they come first; a number never comes
 * again. It has its contents by its number, whatever names it has, so a rename or a hard link costs no contents.
 *
 *   I  the record of inode `number` (meta.h), new or changed; its type, a file, a directory, … never changes
 *   L  directory `number` has the name of the payload, for inode `at`
 *   U  directory `number` does not have that name for inode `at` any more
 *   X  inode `number`, which has no name, and no names in it, is gone
 *   S  file `number` has `at` bytes. When it becomes shorter, the rest of its last page is zero
 *   D  pages of file `number` from offset `at` on; they may end behind the file's last byte, but not behind its last page
 *   H  a hole in file `number` from offset `at` on; the payload is its size (8)
 *   R  the end of pass `number` (1, 2, …), of which all that comes later is sent again; it is answered
 *   E  the end of the last pass: `at` inodes and names, the sum of whose records (record.h) is the payload (16)
 *   A  from the destination: R or E has come, and all before it is where it belongs
 *
 * `check` is an XXH3 of header and payload, whose seed is the number of the frame in its direction from 0: a frame that
 * was changed, lost, repeated or moved is seen. A frame that breaks any rule here ends the move.
 */
#ifndef WHERRY_TREE_WIRE_H
#define WHERRY_TREE_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/page_sums.h>

enum {
    WIRE_HEADER = 32,
    WIRE_NAME_MAX = 255,
    WIRE_META_MAX = 1 << 20,
    WIRE_DATA_MAX = PAGE_SUMS_WINDOW,
    WIRE_PAYLOAD_MAX = WIRE_META_MAX,
};

#define WIRE_NUMBERS (UINT64_C(1) << 28) /* of inodes: all are smaller */

struct wire_frame {
    uint32_t type, length;
    uint64_t number, at;
};

/* The part of a check that is the payload's. */
uint64_t wire_sum(const void *payload, size_t length);
void wire_encode(const struct wire_frame *frame, uint64_t sequence, uint64_t sum, uint8_t bytes[WIRE_HEADER]);
/* 0, or -EPROTO: an unknown type, or values that no frame of this type may have. The check is not looked at. */
int wire_decode(const uint8_t bytes[WIRE_HEADER], struct wire_frame *frame);
/* 0, or -EBADMSG: header or payload differ from the sent ones. */
int wire_check(const uint8_t bytes[WIRE_HEADER], uint64_t sequence, const void *payload, size_t length);
/* A number of a payload, big-endian. */
void wire_put_number(uint8_t to[sizeof(uint64_t)], uint64_t number);
uint64_t wire_number(const uint8_t bytes[sizeof(uint64_t)]);
/* 0, or -EPROTO: no name of a directory's entry. Copies it, ended by a zero byte. */
int wire_name(const void *payload, size_t length, char name[WIRE_NAME_MAX + 1]);

#endif
