/* See owner.h. No state. */
#include "owner.h"

#include <errno.h>
#include <string.h>

#include "wherry/number.h"

int owner_parse(struct owner *owner, char *text)
{
    const char *uid_text = strsep(&text, ":"), *gid_text = strsep(&text, ":");
    uint64_t uid, gid;
    int count;

    if (!gid_text || !text)
        return -EPROTO;
    /* (uid_t)-1 means "no change" to the kernel: a process would stay root. */
    if (number_parse(uid_text, strlen(uid_text), UINT32_MAX - 1, &uid) < 0 ||
        number_parse(gid_text, strlen(gid_text), UINT32_MAX - 1, &gid) < 0)
        return -EPROTO;
    count = wire_parse_groups(text, owner->groups, WIRE_GROUPS_MAX);
    if (count < 0)
        return count;
    owner->group_count = (size_t)count;
    owner->uid = (uid_t)uid;
    owner->gid = (gid_t)gid;
    return 0;
}

static bool has_group(const struct owner *owner, gid_t gid)
{
    for (size_t i = 0; i < owner->group_count; i++)
        if (owner->groups[i] == gid)
            return true;
    return gid == owner->gid;
}

bool owner_allows(const struct owner *owner, const struct wire_run *run)
{
    if (owner->uid == 0)
        return true;
    for (size_t i = 0; i < run->group_count; i++)
        if (!has_group(owner, run->groups[i]))
            return false;
    return run->uid == owner->uid && has_group(owner, run->gid);
}
