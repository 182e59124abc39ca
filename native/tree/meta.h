/*
 * An inode without its contents and names: type, mode, owner, device, time of its last change, target of a link,
 * extended attributes (user.*, trusted.*, capabilities and POSIX ACLs; others are the host's). As payload of an I, big-endian:
 *
 *   mode (4) | uid (4) | gid (4) | major (4) | minor (4) | nanoseconds (4) | seconds (8) | size of target (4) |
 *   number of attributes (4) | target, 0 | for each attribute, in the order of their names:
 *       size of name (2) | size of value (4) | name, 0 | value
 *
 * The same inode has the same payload at both ends. Only links have a target.
 */
#ifndef WHERRY_TREE_META_H
#define WHERRY_TREE_META_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

/* Bytes that grow. All zero: none. */
struct bytes {
    uint8_t *data;
    size_t count, room;
};

/* 0, or -ENOMEM. */
int bytes_add(struct bytes *bytes, const void *more, size_t count);

/* The parts of a payload; it points into it. */
struct meta {
    mode_t mode;
    uid_t uid;
    gid_t gid;
    dev_t device;
    struct timespec changed;
    const char *target; /* NULL: it is no link */
    const uint8_t *attributes, *end;
    uint32_t attribute_count;
};

/*
 * The payload for an inode that `directory` has as `name` and that has this status. 0 or negative errno; -E2BIG: its
 * attributes are more than a payload may have. A link that is none any more: -EINVAL.
 */
int meta_read(int directory, const char *name, const struct stat *status, struct bytes *payload);
/* 0, or -EPROTO: no payload, or of a type that does not move (sockets). */
int meta_parse(const uint8_t *payload, size_t size, struct meta *meta);
/* Makes an inode that `directory` has as `name`, which nobody else changes, what it is to be. 0 or negative errno. */
int meta_apply(int directory, const char *name, const struct meta *meta);

#endif
