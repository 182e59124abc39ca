/*
 * The user whose programs may run on this node: the user of its cluster.
 *
 *   UID:GID:GROUPS      1000:1000:4,24
 *
 * The key alone must not decide: it is in the job file, which the user reads. An owner with UID 0 may start programs as any user.
 */
#ifndef WHERRY_INIT_OWNER_H
#define WHERRY_INIT_OWNER_H

#include <stdbool.h>

#include "wherry/wire.h"

struct owner {
    uid_t uid;
    gid_t gid;
    size_t group_count;
    gid_t groups[WIRE_GROUPS_MAX];
};

/* Takes UID:GID:GROUPS apart; the text is changed. Returns 0 or -EPROTO. */
int owner_parse(struct owner *owner, char *text);
/* True when the request's user is the owner, and its groups are some of the owner's. */
bool owner_allows(const struct owner *owner, const struct wire_run *run);

#endif
