/* See wherry/inherited.h. */
#include "wherry/inherited.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include "wherry/number.h"

static const struct {
    const char *name;
    int resource;
} known[INHERITED_LIMITS] = {
    {"as", RLIMIT_AS},         {"core", RLIMIT_CORE},       {"cpu", RLIMIT_CPU},       {"data", RLIMIT_DATA},
    {"fsize", RLIMIT_FSIZE},   {"memlock", RLIMIT_MEMLOCK}, {"nofile", RLIMIT_NOFILE}, {"stack", RLIMIT_STACK},
};

static bool is_word(const char *text, size_t length, const char *word)
{
    return length == strlen(word) && memcmp(text, word, length) == 0;
}

static int parse_amount(const char *text, size_t length, rlim_t *amount)
{
    uint64_t value;

    if (is_word(text, length, "unlimited")) {
        *amount = RLIM_INFINITY;
        return 0;
    }
    if (number_parse(text, length, INT64_MAX, &value) < 0)
        return -EPROTO;
    *amount = value;
    return 0;
}

static int parse_limit(const char *name, size_t name_length, const char *value, size_t length,
                       struct inherited *inherited)
{
    const char *colon = memchr(value, ':', length);
    struct rlimit limit;

    if (!colon || parse_amount(value, (size_t)(colon - value), &limit.rlim_cur) < 0 ||
        parse_amount(colon + 1, length - (size_t)(colon + 1 - value), &limit.rlim_max) < 0 ||
        limit.rlim_cur > limit.rlim_max)
        return -EPROTO;
    for (size_t i = 0; i < INHERITED_LIMITS; i++) {
        if (!is_word(name, name_length, known[i].name))
            continue;
        for (size_t other = 0; other < inherited->limit_count; other++)
            if (inherited->limits[other].resource == known[i].resource)
                return -EPROTO;
        inherited->limits[inherited->limit_count].resource = known[i].resource;
        inherited->limits[inherited->limit_count++].limit = limit;
        return 0;
    }
    return -EPROTO;
}

static int parse_nice(const char *text, size_t length, struct inherited *inherited)
{
    bool negative = length && *text == '-';
    uint64_t value;

    if (inherited->has_nice || number_parse(text + negative, length - negative, negative ? 20 : 19, &value) < 0)
        return -EPROTO;
    inherited->has_nice = true;
    inherited->nice = negative ? -(int)value : (int)value;
    return 0;
}

static int parse_part(const char *part, size_t length, bool *has_umask, struct inherited *inherited)
{
    const char *equals = memchr(part, '=', length), *value = equals + 1;
    size_t name, left;
    uint64_t mask;

    if (!equals)
        return -EPROTO;
    name = (size_t)(equals - part);
    left = length - name - 1;
    if (is_word(part, name, "nice"))
        return parse_nice(value, left, inherited);
    if (!is_word(part, name, "umask"))
        return parse_limit(part, name, value, left, inherited);
    if (*has_umask || number_parse(value, left, 0777, &mask) < 0)
        return -EPROTO;
    *has_umask = true;
    inherited->umask = (mode_t)mask;
    return 0;
}

int inherited_parse(const char *text, struct inherited *inherited)
{
    bool has_umask = false;

    memset(inherited, 0, sizeof *inherited);
    inherited->umask = 022;
    while (*text) {
        size_t length = strcspn(text, ",");

        if (parse_part(text, length, &has_umask, inherited) < 0)
            return -EPROTO;
        text += length;
        if (*text == ',' && *++text == '\0')
            return -EPROTO;
    }
    return 0;
}

void inherited_apply(const struct inherited *inherited)
{
    umask(inherited->umask);
    for (size_t i = 0; i < inherited->limit_count; i++) {
        int resource = inherited->limits[i].resource;
        struct rlimit wanted = inherited->limits[i].limit, ours;

        if (setrlimit((__rlimit_resource_t)resource, &wanted) == 0 ||
            getrlimit((__rlimit_resource_t)resource, &ours) < 0)
            continue;
        if (wanted.rlim_max > ours.rlim_max)
            wanted.rlim_max = ours.rlim_max;
        if (wanted.rlim_cur > wanted.rlim_max)
            wanted.rlim_cur = wanted.rlim_max;
        setrlimit((__rlimit_resource_t)resource, &wanted);
    }
    if (inherited->has_nice)
        setpriority(PRIO_PROCESS, 0, inherited->nice);
}
