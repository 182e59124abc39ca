/*
 * Parsers of the wire format (see wherry/wire.h). Pure functions: no I/O, nothing global; whatever the bytes are,
 * they read only inside the given range. Fuzzed by fuzz/fuzz_wire.c.
 */
#include "wherry/wire.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "wherry/number.h"

void wire_put_header(uint8_t *to, uint8_t type, uint32_t length)
{
    to[0] = type;
    to[1] = (uint8_t)(length >> 24);
    to[2] = (uint8_t)(length >> 16);
    to[3] = (uint8_t)(length >> 8);
    to[4] = (uint8_t)length;
}

static ssize_t limit_of_hello(uint8_t type)
{
    switch (type) {
    case 'C':
    case 'H':
        return WIRE_ANSWER;
    case 'A':
        return WIRE_PROOF;
    case 'F':
        return WIRE_TEXT_MAX;
    default:
        return -EPROTO;
    }
}

static ssize_t limit_of_sealed(uint8_t type)
{
    switch (type) {
    case 'R':
        return WIRE_REQUEST_MAX;
    case 'I':
    case 'O':
    case 'E':
        return WIRE_DATA_MAX;
    case 'P':
    case 'K':
    case 'J':
    case 'S':
    case 'F':
    case 'X':
        return WIRE_TEXT_MAX;
    default:
        return -EPROTO;
    }
}

ssize_t wire_parse_frame(const uint8_t *bytes, size_t count, bool sealed, struct wire_frame *frame, size_t *wanted)
{
    ssize_t limit;

    *wanted = WIRE_HEADER;
    if (count == 0)
        return 0;
    limit = sealed ? limit_of_sealed(bytes[0]) : limit_of_hello(bytes[0]);
    if (limit < 0)
        return limit;
    if (count < WIRE_HEADER)
        return 0;
    frame->type = bytes[0];
    frame->length = (uint32_t)bytes[1] << 24 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 8 | bytes[4];
    frame->payload = bytes + WIRE_HEADER;
    if (frame->length > (size_t)limit)
        return -EMSGSIZE;
    *wanted = WIRE_HEADER + (size_t)frame->length + (sealed ? WIRE_TAG : 0);
    return count < *wanted ? 0 : (ssize_t)*wanted;
}

int wire_parse_groups(const char *text, gid_t *groups, size_t room)
{
    size_t count = 0;

    while (*text) {
        size_t length = strcspn(text, ",");
        uint64_t value;

        /* (gid_t)-1 means "no change" to the kernel, so it is no group. */
        if (count == room || number_parse(text, length, UINT32_MAX - 1, &value) < 0)
            return -EPROTO;
        groups[count++] = (gid_t)value;
        text += length;
        if (*text == ',' && *++text == '\0')
            return -EPROTO;
    }
    return (int)count;
}

/*
 * The next string of the request, or NULL at its end. Every string has its NUL: the caller has checked the last byte.
 */
static char *next_string(const uint8_t **at, const uint8_t *end)
{
    const uint8_t *start = *at;

    if (start == end)
        return NULL;
    *at = (const uint8_t *)memchr(start, 0, (size_t)(end - start)) + 1;
    return (char *)(uintptr_t)start;
}

static int next_number(const uint8_t **at, const uint8_t *end, uint64_t limit, uint64_t *value)
{
    const char *text = next_string(at, end);

    return text ? number_parse(text, strlen(text), limit, value) : -EPROTO;
}

int wire_parse_run(const uint8_t *payload, size_t length, struct wire_run *run)
{
    const uint8_t *at = payload, *end = payload + length;
    uint64_t uid, gid, argc;
    const char *groups, *inherited;
    size_t strings = 0, i;
    int count;

    memset(run, 0, sizeof *run);
    if (length == 0 || payload[length - 1] != 0)
        return -EPROTO;
    if (next_number(&at, end, UINT32_MAX - 1, &uid) < 0 || next_number(&at, end, UINT32_MAX - 1, &gid) < 0)
        return -EPROTO;
    groups = next_string(&at, end);
    run->cwd = next_string(&at, end);
    inherited = next_string(&at, end);
    if (!groups || !run->cwd || !inherited || inherited_parse(inherited, &run->inherited) < 0)
        return -EPROTO;
    if (next_number(&at, end, length, &argc) < 0 || argc == 0)
        return -EPROTO;
    count = wire_parse_groups(groups, run->groups, WIRE_GROUPS_MAX);
    if (count < 0)
        return count;
    run->group_count = (size_t)count;
    run->uid = (uid_t)uid;
    run->gid = (gid_t)gid;
    for (const uint8_t *byte = at; byte < end; byte++)
        strings += *byte == 0;
    if (strings < argc)
        return -EPROTO;
    run->argv = calloc(argc + 1, sizeof *run->argv);
    run->envp = calloc(strings - argc + 1, sizeof *run->envp);
    if (!run->argv || !run->envp)
        return -ENOMEM;
    for (i = 0; i < argc; i++)
        run->argv[i] = next_string(&at, end);
    for (i = 0; i < strings - argc; i++) {
        run->envp[i] = next_string(&at, end);
        if (!strchr(run->envp[i], '=') || run->envp[i][0] == '=')
            return -EPROTO;
    }
    return run->argv[0][0] ? 0 : -EPROTO;
}

void wire_free_run(struct wire_run *run)
{
    free(run->argv);
    free(run->envp);
    run->argv = run->envp = NULL;
}

int wire_parse_kill(const uint8_t *payload, size_t length, pid_t *pid, int *signal_number)
{
    const char *text = (const char *)payload;
    const char *blank = length ? memchr(text, ' ', length) : NULL;
    uint64_t process, number;

    if (!blank || number_parse(text, (size_t)(blank - text), INT32_MAX, &process) < 0 ||
        number_parse(blank + 1, length - (size_t)(blank + 1 - text), 64, &number) < 0)
        return -EPROTO;
    *pid = (pid_t)process;
    *signal_number = (int)number;
    return process > 1 ? 0 : -EPROTO;
}

int wire_parse_job(const uint8_t *payload, size_t length, char job[WIRE_JOB_MAX + 1])
{
    if (length == 0 || length > WIRE_JOB_MAX)
        return -EPROTO;
    for (size_t i = 0; i < length; i++)
        if (payload[i] != '-' && (payload[i] >= 0x80 || !isalnum(payload[i])))
            return -EPROTO;
    memcpy(job, payload, length);
    job[length] = 0;
    return 0;
}

int wire_check_key(const char *text, size_t length)
{
    if (length != WIRE_KEY)
        return -EPROTO;
    for (size_t i = 0; i < length; i++)
        if (!isxdigit((unsigned char)text[i]))
            return -EPROTO;
    return 0;
}
