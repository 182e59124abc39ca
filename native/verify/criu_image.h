/*
 * Reads CRIU's output: image files of protobuf messages, as far as pages and where they belong need it.
 *
 *   pagemap-12.img   magic magic | length head | length entry | length entry ...
 *                                        |                |
 *                                  pages_id = 3     address, pages, flags
 *                                        v                v
 *   pages-3.img      the pages of all entries that are present, one after the other
 *
 * The images came from another machine: every length is checked, and a wrong one is -EBADMSG.
 */
#ifndef WHERRY_VERIFY_CRIU_IMAGE_H
#define WHERRY_VERIFY_CRIU_IMAGE_H

#include <stddef.h>
#include <stdint.h>

#define PAGE 4096u

struct bytes {
    const uint8_t *at;
    size_t count;
};

/* One field of a message: its number, and a value or bytes, by its wire type. */
struct field {
    uint32_t number;
    uint64_t value;
    struct bytes bytes;
};

/* Takes the next field off the message. 1: taken, 0: there is none, -EBADMSG. */
int field_next(struct bytes *message, struct field *field);
/* The first field `number` of the message. 1: found, 0: not there, -EBADMSG. */
int field_find(struct bytes message, uint32_t number, struct field *field);

/* A whole image file in memory. 0 or negative errno; -EBADMSG without CRIU's magic. */
int image_load(int directory, const char *name, struct bytes *image);
void image_free(struct bytes *image);
/* The messages of an image, `left` first set to the result of image_load(). 1: taken, 0: the end, -EBADMSG. */
int image_next(struct bytes *left, struct bytes *message);
/* `left` at the first message of an image: behind the magic numbers. */
struct bytes image_messages(struct bytes image);

enum { LAZY = 2, PRESENT = 4 };

struct extent {
    uint64_t address, pages;
    unsigned flags;
};

/* An entry of a pagemap. 0 or -EBADMSG. */
int extent_read(struct bytes message, struct extent *extent);

#endif
