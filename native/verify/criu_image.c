/* See criu_image.h. Wire format: https://protobuf.dev/programming-guides/encoding/ */
#include "criu_image.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COMMON_MAGIC 0x54564319u
#define HEADER 8u
#define LARGEST (256u << 20)

enum { VARINT, FIXED64, COUNTED, FIXED32 = 5 };

static int varint_take(struct bytes *from, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 64 && from->count; shift += 7) {
        uint8_t byte = *from->at++;

        from->count--;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return 0;
    }
    return -EBADMSG;
}

static int bytes_take(struct bytes *from, uint64_t count, struct bytes *taken)
{
    if (count > from->count)
        return -EBADMSG;
    *taken = (struct bytes){from->at, count};
    from->at += count;
    from->count -= count;
    return 0;
}

int field_next(struct bytes *message, struct field *field)
{
    uint64_t key, count;
    int error;

    if (!message->count)
        return 0;
    if ((error = varint_take(message, &key)))
        return error;
    *field = (struct field){.number = (uint32_t)(key >> 3)};
    switch (key & 7) {
    case VARINT:
        error = varint_take(message, &field->value);
        break;
    case FIXED64:
        error = bytes_take(message, 8, &field->bytes);
        break;
    case FIXED32:
        error = bytes_take(message, 4, &field->bytes);
        break;
    case COUNTED:
        error = varint_take(message, &count);
        if (!error)
            error = bytes_take(message, count, &field->bytes);
        break;
    default:
        error = -EBADMSG;
    }
    return error ? error : 1;
}

int field_find(struct bytes message, uint32_t number, struct field *field)
{
    int taken;

    while ((taken = field_next(&message, field)) > 0)
        if (field->number == number)
            return 1;
    return taken;
}

int image_load(int directory, const char *name, struct bytes *image)
{
    struct stat status;
    uint32_t magic;
    uint8_t *data = NULL;
    size_t have = 0;
    ssize_t got = 0;
    int error = 0, file = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (file < 0)
        return -errno;
    if (fstat(file, &status) || status.st_size > LARGEST || !(data = malloc((size_t)status.st_size + 1)))
        error = -ENOMEM;
    while (!error && have < (size_t)status.st_size &&
           (got = read(file, data + have, (size_t)status.st_size - have)) > 0)
        have += (size_t)got;
    if (!error && got < 0)
        error = -errno;
    if (!error && (have < HEADER || (memcpy(&magic, data, sizeof(magic)), magic != COMMON_MAGIC)))
        error = -EBADMSG;
    close(file);
    if (error)
        free(data);
    else
        *image = (struct bytes){data, have};
    return error;
}

void image_free(struct bytes *image)
{
    free((void *)image->at);
    *image = (struct bytes){0};
}

struct bytes image_messages(struct bytes image)
{
    return (struct bytes){image.at + HEADER, image.count - HEADER};
}

int image_next(struct bytes *left, struct bytes *message)
{
    struct bytes length;
    uint32_t count;
    int error;

    if (!left->count)
        return 0;
    if ((error = bytes_take(left, sizeof(count), &length)))
        return error;
    memcpy(&count, length.at, sizeof(count));
    error = bytes_take(left, count, message);
    return error ? error : 1;
}

int extent_read(struct bytes message, struct extent *extent)
{
    struct field field;
    int taken;

    *extent = (struct extent){.flags = PRESENT};
    while ((taken = field_next(&message, &field)) > 0) {
        if (field.number == 1)
            extent->address = field.value;
        else if (field.number == 2 || field.number == 5) /* 32 and, from CRIU 4.1 on, 64 bits wide */
            extent->pages = field.value > extent->pages ? field.value : extent->pages;
        else if (field.number == 3 && field.value)
            extent->flags = 0; /* in images of an earlier dump, which there is not */
        else if (field.number == 4)
            extent->flags = (unsigned)field.value;
    }
    if (!taken && (extent->pages > UINT64_MAX / PAGE || extent->address > UINT64_MAX - extent->pages * PAGE))
        taken = -EBADMSG;
    return taken;
}
