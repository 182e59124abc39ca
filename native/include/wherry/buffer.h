/*
 * A byte queue of bounded size: bytes enter at the tail, leave at the head.
 *
 *   data: [ ......... | queued bytes | room ...... ]
 *         0          head          head+count    capacity
 */
#ifndef WHERRY_BUFFER_H
#define WHERRY_BUFFER_H

#include <stddef.h>
#include <stdint.h>

struct buffer {
    uint8_t *data;
    size_t head, count, capacity;
};

/* Makes room for at least `room` bytes at the tail. Returns 0 or -ENOMEM. */
int buffer_reserve(struct buffer *buffer, size_t room);
/* First free byte; valid for as much as buffer_reserve() promised. */
uint8_t *buffer_tail(struct buffer *buffer);
uint8_t *buffer_head(const struct buffer *buffer);
void buffer_append(struct buffer *buffer, const void *bytes, size_t count);
void buffer_consume(struct buffer *buffer, size_t count);
void buffer_free(struct buffer *buffer);

#endif
