/* The destination's side, after a comparison that sent memory again; see main.c. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "process_memory.h"

static uint8_t sent[PATCH_MAX], there[PATCH_MAX];

/*
 * Writes one run, whose bytes follow its record, and reads it again. 0 or negative errno; -EBADMSG: it differs from the
 * sent bytes.
 */
static int patch_one(const char *record, uint64_t *left)
{
    const struct task *task;
    uint64_t address, count;
    uint32_t inside, crc;
    int error;

    if (sscanf(record, "m %" SCNu32 " %" SCNx64 " %" SCNu64 " %" SCNx32, &inside, &address, &count, &crc) != 4)
        return -EBADMSG;
    if (count > *left || fread(sent, 1, (size_t)count, stdin) != count || crc32c(0, sent, (size_t)count) != crc)
        return -EBADMSG;
    *left -= count;
    if (!(task = tasks_find(inside)))
        return -ESRCH;
    error = memory_write(task, address, sent, (size_t)count);
    if (!error)
        error = memory_read(task, address, there, (size_t)count);
    return error ? error : memcmp(sent, there, (size_t)count) ? -EBADMSG : 0;
}

int patch_run(const char *tasks_path)
{
    char *record = NULL;
    size_t room = 0;
    uint64_t left = PATCH_MAX;
    int error = tasks_read(tasks_path, O_RDWR), ended = 0;

    while (!error && !ended) {
        if (getdelim(&record, &room, 0, stdin) <= 0)
            error = -EBADMSG;
        else if (*record == 'm')
            error = patch_one(record, &left);
        else if (!(ended = !strcmp(record, ".")))
            error = -EBADMSG;
    }
    free(record);
    if (error)
        fprintf(stderr, "wherry-verify: memory that was sent again cannot be written: %s\n", strerror(-error));
    return error ? CANNOT_TELL : SAME;
}
