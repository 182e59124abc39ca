/* The byte queue of wherry/buffer.h. It grows only when asked by buffer_reserve(), so its users bound its size. */
#include "wherry/buffer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int buffer_reserve(struct buffer *buffer, size_t room)
{
    uint8_t *data;

    if (buffer->capacity - buffer->head - buffer->count >= room)
        return 0;
    if (buffer->head) {
        memmove(buffer->data, buffer->data + buffer->head, buffer->count);
        buffer->head = 0;
    }
    if (buffer->capacity - buffer->count >= room)
        return 0;
    data = realloc(buffer->data, buffer->count + room);
    if (!data)
        return -ENOMEM;
    buffer->data = data;
    buffer->capacity = buffer->count + room;
    return 0;
}

uint8_t *buffer_tail(struct buffer *buffer)
{
    return buffer->data + buffer->head + buffer->count;
}

uint8_t *buffer_head(const struct buffer *buffer)
{
    return buffer->data + buffer->head;
}

void buffer_append(struct buffer *buffer, const void *bytes, size_t count)
{
    if (count)
        memcpy(buffer_tail(buffer), bytes, count);
    buffer->count += count;
}

void buffer_consume(struct buffer *buffer, size_t count)
{
    buffer->head += count;
    buffer->count -= count;
    if (buffer->count == 0)
        buffer->head = 0;
}

void buffer_free(struct buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct buffer){0};
}
