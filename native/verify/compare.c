/* The source's side; see main.c. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checksums.h"
#include "commands.h"
#include "criu_image.h"
#include "process_memory.h"

static uint8_t block[BLOCK];

static int memory_sum(const struct task *task, uint64_t address, uint64_t count, uint32_t *crc)
{
    int error = 0;

    while (count && !error) {
        uint64_t whole = BLOCK - address % PAGE; /* so that it ends with a page */
        size_t part = (size_t)(count < whole ? count : whole);

        error = memory_read(task, address, block, part);
        *crc = checksum_add(*crc, address, block, part);
        address += part, count -= part;
    }
    return error;
}

static int differs(const char *what, int error)
{
    fprintf(stderr, "%s %s%s%s\n", what, error ? "cannot be read at the source" : "differs from the source",
            error ? ": " : "", error ? strerror(-error) : "");
    return DIFFERENT;
}

/* A little of it may be patched; more than that is damage of an unknown kind. */
static int send_again(const struct task *task, uint64_t address, uint64_t count)
{
    static uint64_t left = PATCH_MAX;

    if (count > left || memory_read(task, address, block, (size_t)count))
        return DIFFERENT;
    left -= count;
    printf("m %" PRIu32 " %" PRIx64 " %" PRIu64 " %08" PRIx32 "%c", task->inside, address, count,
           crc32c(0, block, (size_t)count), 0);
    fwrite(block, 1, (size_t)count, stdout);
    return SENT_AGAIN;
}

static int compare_memory(const char *record, uint64_t *compared)
{
    const struct task *task;
    uint64_t address, count;
    uint32_t inside, want, have = 0;
    char what[96];
    int error;

    if (sscanf(record, "p %" SCNu32 " %" SCNx64 " %" SCNu64 " %" SCNx32, &inside, &address, &count, &want) != 4)
        return CANNOT_TELL;
    task = tasks_find(inside);
    error = task ? memory_sum(task, address, count, &have) : -ESRCH;
    *compared += count;
    if (!error && have == want)
        return SAME;
    snprintf(what, sizeof(what), "the memory of process %u at 0x%" PRIx64 ", %" PRIu64 " bytes,", inside, address,
             count);
    differs(what, error);
    return error ? DIFFERENT : send_again(task, address, count);
}

static int compare_file(const char *record, const char *top, uint64_t *compared)
{
    uint64_t size, have_size;
    uint32_t want, have;
    char path[8192], what[8192];
    int error, at = 0;

    if (sscanf(record + 1, " %" SCNu64 " %" SCNx32 "%n", &size, &want, &at) != 2 || record[1 + at] != ' ')
        return CANNOT_TELL;
    record += 1 + at + 1;
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", top, record) >= sizeof(path))
        return CANNOT_TELL;
    error = checksum_of_file(path, &have_size, &have);
    *compared += size;
    if (!error && have == want && have_size == size)
        return SAME;
    snprintf(what, sizeof(what), "the file %.4000s", record);
    return differs(what, error);
}

int compare_run(const char *images, const char *tasks)
{
    char *record = NULL;
    size_t room = 0;
    uint64_t compared = 0;
    int result = SAME, ended = 0, learnt = 0;

    while (!ended && getdelim(&record, &room, 0, stdin) > 0) {
        int one = CANNOT_TELL;

        if (!learnt && tasks_read(tasks, O_RDONLY))
            break;
        learnt = 1;
        if (*record == 'p')
            one = compare_memory(record, &compared);
        else if (*record == 'i')
            one = compare_file(record, images, &compared);
        else if ((ended = !strcmp(record, ".")))
            one = SAME;
        if (one != SAME)
            result = one;
        if (result != SAME && result != SENT_AGAIN)
            break;
    }
    if (!ended && result != DIFFERENT)
        result = CANNOT_TELL;
    while (!ended && getdelim(&record, &room, 0, stdin) > 0)
        ended = !strcmp(record, "."); /* the digest must not see its connection break and report that instead */
    if (result == SENT_AGAIN && (printf(".%c", 0) < 0 || fflush(stdout)))
        result = DIFFERENT;
    if (result == SAME)
        fprintf(stderr, "%" PRIu64 "\n", compared);
    else if (result == CANNOT_TELL)
        fputs("wherry-verify: the list of arrived data is not whole\n", stderr);
    free(record);
    return result;
}
