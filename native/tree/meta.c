/* See meta.h. */
#include "meta.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "wire.h"

enum { FIXED = 40, ATTRIBUTE = 6, TARGET_MAX = 4095, LIST_MAX = 1 << 16, VALUE_MAX = 1 << 16 };

struct path {
    char text[32 + WIRE_NAME_MAX + 1];
};

/* For calls that know no descriptors of directories; `name` is one component. */
static struct path path_of(int directory, const char *name)
{
    struct path path;

    snprintf(path.text, sizeof(path.text), "/proc/self/fd/%d/%s", directory, name);
    return path;
}

int bytes_add(struct bytes *bytes, const void *more, size_t count)
{
    if (bytes->room - bytes->count < count) {
        size_t room = 2 * (bytes->count + count) + 256;
        uint8_t *larger = realloc(bytes->data, room);

        if (!larger)
            return -ENOMEM;
        bytes->data = larger, bytes->room = room;
    }
    memcpy(bytes->data + bytes->count, more, count);
    bytes->count += count;
    return 0;
}

static int moves(const char *attribute)
{
    return !strncmp(attribute, "user.", 5) || !strncmp(attribute, "trusted.", 8) ||
           !strcmp(attribute, "security.capability") || !strcmp(attribute, "system.posix_acl_access") ||
           !strcmp(attribute, "system.posix_acl_default");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The names of the attributes that move, in order, pointing into `list`. Their number, or negative errno. */
static int names_of(const char *path, char *list, const char **names, size_t room)
{
    ssize_t size = llistxattr(path, list, LIST_MAX - 1);
    size_t count = 0;

    if (size < 0)
        return errno == ENOTSUP || errno == ENOSYS ? 0 : -errno;
    list[size] = 0;
    for (const char *name = list; name < list + size; name += strlen(name) + 1)
        if (moves(name)) {
            if (count == room)
                return -E2BIG;
            names[count++] = name;
        }
    qsort(names, count, sizeof(*names), by_name);
    return (int)count;
}

static int add_attribute(struct bytes *payload, const char *path, const char *name)
{
    static uint8_t value[VALUE_MAX];
    ssize_t got = lgetxattr(path, name, value, sizeof(value));
    uint16_t name_size = htobe16((uint16_t)strlen(name));
    uint32_t value_size = htobe32((uint32_t)got);
    int error;

    if (got < 0)
        return -errno;
    if ((error = bytes_add(payload, &name_size, sizeof(name_size))) ||
        (error = bytes_add(payload, &value_size, sizeof(value_size))) ||
        (error = bytes_add(payload, name, strlen(name) + 1)))
        return error;
    return bytes_add(payload, value, (size_t)got);
}

/* Their number, or negative errno. */
static int add_attributes(struct bytes *payload, const char *path)
{
    static char list[LIST_MAX];
    static const char *names[LIST_MAX / 8]; /* the shortest one is user.x */
    int count = names_of(path, list, names, sizeof(names) / sizeof(names[0])), taken = 0;

    for (int i = 0; i < count; i++) {
        int error = add_attribute(payload, path, names[i]);

        if (error == -ENODATA)
            continue; /* it has just been removed */
        if (error)
            return error;
        if (payload->count > WIRE_META_MAX)
            return -E2BIG;
        taken++;
    }
    return count < 0 ? count : taken;
}

static int add_target(struct bytes *payload, int directory, const char *name, uint32_t *size)
{
    char target[TARGET_MAX + 2];
    ssize_t got = readlinkat(directory, name, target, sizeof(target));

    if (got <= 0 || got > TARGET_MAX)
        return got < 0 ? -errno : -ENAMETOOLONG;
    target[got] = 0;
    *size = (uint32_t)got;
    return bytes_add(payload, target, (size_t)got + 1);
}

static void put(uint8_t *at, uint32_t number)
{
    number = htobe32(number);
    memcpy(at, &number, sizeof(number));
}

int meta_read(int directory, const char *name, const struct stat *status, struct bytes *payload)
{
    struct path path = path_of(directory, name);
    uint64_t seconds = htobe64((uint64_t)status->st_mtim.tv_sec);
    bool is_device = S_ISCHR(status->st_mode) || S_ISBLK(status->st_mode);
    uint8_t fixed[FIXED] = {0};
    uint32_t target = 0;
    int count, error;

    payload->count = 0;
    if ((error = bytes_add(payload, fixed, sizeof(fixed))))
        return error;
    if (S_ISLNK(status->st_mode) && (error = add_target(payload, directory, name, &target)))
        return error;
    if ((count = add_attributes(payload, path.text)) < 0)
        return count;
    put(payload->data, status->st_mode);
    put(payload->data + 4, status->st_uid);
    put(payload->data + 8, status->st_gid);
    put(payload->data + 12, is_device ? major(status->st_rdev) : 0);
    put(payload->data + 16, is_device ? minor(status->st_rdev) : 0);
    put(payload->data + 20, (uint32_t)status->st_mtim.tv_nsec);
    memcpy(payload->data + 24, &seconds, sizeof(seconds));
    put(payload->data + 32, target);
    put(payload->data + 36, (uint32_t)count);
    return 0;
}

static uint32_t get(const uint8_t *at)
{
    uint32_t number;

    memcpy(&number, at, sizeof(number));
    return be32toh(number);
}

struct attribute {
    const char *name;
    const uint8_t *value;
    uint32_t size;
};

/* The attribute at `bytes`, and the place behind it; NULL: there is none. */
static const uint8_t *next_attribute(const uint8_t *bytes, const uint8_t *end, struct attribute *attribute)
{
    uint16_t name_size;
    size_t left = (size_t)(end - bytes);

    if (left < ATTRIBUTE)
        return NULL;
    memcpy(&name_size, bytes, sizeof(name_size));
    name_size = be16toh(name_size);
    *attribute = (struct attribute){(const char *)bytes + ATTRIBUTE, bytes + ATTRIBUTE + name_size + 1, get(bytes + 2)};
    if (!name_size || name_size > WIRE_NAME_MAX || attribute->size > VALUE_MAX ||
        left - ATTRIBUTE < (size_t)name_size + 1 + attribute->size || attribute->name[name_size] ||
        strlen(attribute->name) != name_size || !moves(attribute->name))
        return NULL;
    return attribute->value + attribute->size;
}

static int has_known_type(mode_t mode)
{
    return S_ISREG(mode) || S_ISDIR(mode) || S_ISLNK(mode) || S_ISFIFO(mode) || S_ISCHR(mode) || S_ISBLK(mode);
}

int meta_parse(const uint8_t *payload, size_t size, struct meta *meta)
{
    const uint8_t *at = payload + FIXED, *end = payload + size;
    uint64_t seconds;
    uint32_t target;

    if (size < FIXED)
        return -EPROTO;
    memcpy(&seconds, payload + 24, sizeof(seconds));
    *meta = (struct meta){.mode = get(payload),
                          .uid = get(payload + 4),
                          .gid = get(payload + 8),
                          .device = makedev(get(payload + 12), get(payload + 16)),
                          .changed = {(time_t)be64toh(seconds), get(payload + 20)},
                          .attribute_count = get(payload + 36)};
    target = get(payload + 32);
    if (!has_known_type(meta->mode) || meta->mode & ~(mode_t)(S_IFMT | 07777) || meta->changed.tv_nsec > 999999999 ||
        meta->uid == (uid_t)-1 || meta->gid == (gid_t)-1 || !target != !S_ISLNK(meta->mode))
        return -EPROTO;
    if (target) {
        if (target > TARGET_MAX || (size_t)(end - at) <= target || strnlen((const char *)at, target + 1) != target)
            return -EPROTO;
        meta->target = (const char *)at;
        at += target + 1;
    }
    meta->attributes = at;
    meta->end = end;
    for (uint32_t i = 0; i < meta->attribute_count; i++) {
        struct attribute attribute;

        if (!(at = next_attribute(at, end, &attribute)))
            return -EPROTO;
    }
    return at == end ? 0 : -EPROTO;
}

static bool has_attribute(const struct meta *meta, const char *name)
{
    const uint8_t *at = meta->attributes;
    struct attribute attribute;

    for (uint32_t i = 0; i < meta->attribute_count; i++) {
        at = next_attribute(at, meta->end, &attribute);
        if (!strcmp(attribute.name, name))
            return true;
    }
    return false;
}

static int remove_others(const char *path, const struct meta *meta)
{
    static char list[LIST_MAX];
    static const char *names[LIST_MAX / 8];
    int count = names_of(path, list, names, sizeof(names) / sizeof(names[0]));

    for (int i = 0; i < count; i++)
        if (!has_attribute(meta, names[i]) && lremovexattr(path, names[i]) && errno != ENODATA)
            return -errno;
    return count < 0 ? count : 0;
}

static int set_attributes(const char *path, const struct meta *meta)
{
    const uint8_t *at = meta->attributes;

    for (uint32_t i = 0; i < meta->attribute_count; i++) {
        struct attribute attribute;

        at = next_attribute(at, meta->end, &attribute);
        if (lsetxattr(path, attribute.name, attribute.value, attribute.size, 0))
            return -errno;
    }
    return 0;
}

/* In this order: a new owner takes set-user-ID and capabilities away, an ACL's mask is part of the mode. */
int meta_apply(int directory, const char *name, const struct meta *meta)
{
    const struct timespec times[] = {{.tv_nsec = UTIME_OMIT}, meta->changed};
    struct path path = path_of(directory, name);
    int error;

    if (fchownat(directory, name, meta->uid, meta->gid, AT_SYMLINK_NOFOLLOW))
        return -errno;
    if ((error = remove_others(path.text, meta)))
        return error;
    if (!S_ISLNK(meta->mode) && fchmodat(directory, name, meta->mode & 07777, 0))
        return -errno;
    if ((error = set_attributes(path.text, meta)))
        return error;
    return utimensat(directory, name, times, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
}
