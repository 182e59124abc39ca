/*
 * Contents of pages, compressed for a slow link: zstd at its fastest level. The payload of a C frame (stream.h):
 *
 *      0                    4             length
 *      +--------------------+---- - - ----+
 *      | CRC-32C of contents| zstd frame  |    big-endian
 *      +--------------------+---- - - ----+
 *
 * Unpacking trusts nothing: never more bytes are written than the frame's pages have, and they must be as many, with
 * this checksum. One thread at a time for each object.
 */
#ifndef WHERRY_PAGER_COMPRESS_H
#define WHERRY_PAGER_COMPRESS_H

#include <stdint.h>

struct packer;
struct unpacker;

/* NULL without memory. */
struct packer *packer_new(void);
/*
 * The contents of pages as a payload in `packed`, which has room for as many bytes. Its length; 0 when too little is
 * gained: then they are sent as they are. After some that gained nothing only a part is tried.
 */
uint32_t packer_pack(struct packer *packer, const uint8_t *contents, uint32_t count, uint8_t *packed);

/* NULL without memory. */
struct unpacker *unpacker_new(void);
/* Writes the `count` bytes of contents; 0 or -EPROTO, and then `contents` may hold anything. */
int unpacker_unpack(struct unpacker *unpacker, const uint8_t *payload, uint32_t length, uint8_t *contents,
                    uint32_t count);
void unpacker_free(struct unpacker *unpacker);

#endif
