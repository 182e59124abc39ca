/* The source's side; see main.c. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include "image.h"
#include "sums.h"
#include "verify.h"

/* A process as its own namespace counts and as we do; its memory by /proc, whatever the protection of a mapping. */
struct task {
    uint32_t inside;
    pid_t pid;
    int memory;
};

static struct task *tasks;
static size_t tasks_count;
static uint8_t block[BLOCK];

/* The last number of NSpid: the process as its innermost namespace counts. 0: gone. */
static uint32_t number_inside(int pid)
{
    char line[256], path[64];
    uint32_t number = 0;
    FILE *status;

    snprintf(path, sizeof(path), "/proc/%d/status", pid);
    if (!(status = fopen(path, "re")))
        return 0;
    while (fgets(line, sizeof(line), status))
        if (!strncmp(line, "NSpid:", 6)) {
            number = (uint32_t)strtoul(strrchr(line, '\t') + 1, NULL, 10);
            break;
        }
    fclose(status);
    return number;
}

static int learn_tasks(const char *path)
{
    FILE *list = fopen(path, "re");
    struct task *more;
    char memory[64];
    int pid;

    if (!list)
        return -errno;
    while (fscanf(list, "%d", &pid) == 1 && (more = realloc(tasks, (tasks_count + 1) * sizeof(*tasks)))) {
        snprintf(memory, sizeof(memory), "/proc/%d/mem", pid);
        tasks = more;
        tasks[tasks_count++] = (struct task){number_inside(pid), pid, open(memory, O_RDONLY | O_CLOEXEC)};
    }
    fclose(list);
    return 0;
}

/* process_vm_readv(2) is several times as fast as /proc, but keeps to the protection of a mapping. */
static int memory_read(const struct task *task, uint64_t address, size_t count)
{
    for (size_t have = 0; have < count;) {
        struct iovec here = {block + have, count - have}, there = {(void *)(address + have), count - have};
        ssize_t got = process_vm_readv(task->pid, &here, 1, &there, 1, 0);

        if (got <= 0)
            got = pread(task->memory, block + have, count - have, (off_t)(address + have));
        if (got <= 0)
            return got ? -errno : -ENODATA;
        have += (size_t)got;
    }
    return 0;
}

static int memory_sum(uint32_t inside, uint64_t address, uint64_t count, uint32_t *crc)
{
    const struct task *task = tasks;
    int error = 0;

    while (task < tasks + tasks_count && task->inside != inside)
        task++;
    if (task == tasks + tasks_count)
        return -ESRCH;
    while (count && !error) {
        uint64_t whole = BLOCK - address % PAGE; /* so that it ends with a page */
        size_t part = (size_t)(count < whole ? count : whole);

        error = memory_read(task, address, part);
        *crc = sums_add(*crc, address, block, part);
        address += part, count -= part;
    }
    return error;
}

static int differs(const char *what, int error)
{
    printf("%s %s%s%s\n", what, error ? "cannot be read at the source" : "is not what was sent", error ? ": " : "",
           error ? strerror(-error) : "");
    return DIFFERENT;
}

static int compare_memory(const char *record, uint64_t *compared)
{
    uint64_t address, count;
    uint32_t inside, want, have = 0;
    char what[96];
    int error;

    if (sscanf(record, "p %" SCNu32 " %" SCNx64 " %" SCNu64 " %" SCNx32, &inside, &address, &count, &want) != 4)
        return CANNOT_TELL;
    error = memory_sum(inside, address, count, &have);
    *compared += count;
    if (!error && have == want)
        return SAME;
    snprintf(what, sizeof(what), "the memory of process %u at 0x%" PRIx64 ", %" PRIu64 " bytes,", inside, address, count);
    return differs(what, error);
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
    error = file_sum(path, &have_size, &have);
    *compared += size;
    if (!error && have == want && have_size == size)
        return SAME;
    snprintf(what, sizeof(what), "the file %.4000s", record);
    return differs(what, error);
}

int compare_run(const char *images, const char *tree, const char *tasks_path)
{
    char *record = NULL;
    size_t room = 0;
    uint64_t compared = 0;
    int result = CANNOT_TELL, ended = 0;

    while (!ended && getdelim(&record, &room, 0, stdin) > 0) {
        if (!tasks && learn_tasks(tasks_path))
            break;
        if (*record == 'p')
            result = compare_memory(record, &compared);
        else if (*record == 'i' || *record == 't')
            result = compare_file(record, *record == 'i' ? images : tree, &compared);
        else
            ended = !strcmp(record, "."), result = ended ? SAME : CANNOT_TELL;
        if (result != SAME)
            break;
    }
    while (!ended && getdelim(&record, &room, 0, stdin) > 0)
        ; /* who lists must not see its connection break, and blame that */
    if (result == SAME && !ended)
        result = CANNOT_TELL;
    if (result == SAME)
        printf("%" PRIu64 "\n", compared);
    else if (result == CANNOT_TELL)
        fputs("wherry-verify: the list of what arrived is not whole\n", stderr);
    free(record);
    free(tasks);
    return result;
}
