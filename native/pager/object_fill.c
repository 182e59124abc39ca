/* See object_fill.h. */
#include "object_fill.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "objects.h"
#include "processes.h"

enum { THREADS = 2 };

static const uint64_t PAGE = STREAM_PAGE;

struct target {
    bool is_private;
    struct place places[OBJECT_PLACES];
    size_t place_count;
    int file;      /* of shared memory; of private, /proc/PID/mem */
    uint64_t size; /* of the file */
    struct chunk **chunks;
    size_t chunk_count;
};

struct filling {
    struct target *targets;
    size_t count;
    pthread_mutex_t lock;
    size_t target, chunk; /* which is next */
    _Atomic int error;    /* the first one */
    _Atomic uint64_t bytes;
};

/* The text of the table, with a zero byte behind it; NULL: there is none, or no memory. */
static char *take_table(struct cache *cache, int *error)
{
    struct chunk **chunks;
    char *text = NULL;
    size_t count;

    if ((*error = cache_take(cache, OBJECTS_TABLE, &chunks, &count)))
        return NULL;
    if (count && !(text = calloc(count * CHUNK + 1, 1)))
        *error = -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        uint64_t present[CHUNK_WORDS];

        chunk_present(chunks[i], 1, present);
        for (unsigned page = 0; text && page < CHUNK_PAGES; page++)
            if (present[page / 64] >> page % 64 & 1)
                memcpy(text + i * CHUNK + page * PAGE, chunks[i]->bytes + page * PAGE, PAGE);
        chunk_put(chunks[i]);
    }
    free(chunks);
    return text;
}

static int host_pid_of(const struct processes *processes, uint32_t ns_pid)
{
    for (size_t i = 0; i < processes->count; i++)
        if (processes->list[i].listed && processes->list[i].ns_pid == ns_pid)
            return processes->list[i].pid;
    return 0;
}

/* The text behind the line, or NULL: it is malformed. */
static const char *parse_place(const char *text, const struct processes *processes, struct place *place)
{
    int writable, end = 0;

    if (sscanf(text, "%" SCNu32 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %d\n%n", &place->ns_pid, &place->start,
               &place->end, &place->offset, &writable, &end) != 5 ||
        !end || place->start >= place->end)
        return NULL;
    place->writable = writable;
    place->pid = host_pid_of(processes, place->ns_pid);
    return place->pid ? text + end : NULL;
}

static int open_target(struct target *target)
{
    const struct place *place = &target->places[0];
    struct stat status;
    char path[96];

    if (target->is_private)
        snprintf(path, sizeof(path), "/proc/%d/mem", place->pid);
    else
        snprintf(path, sizeof(path), "/proc/%d/map_files/%" PRIx64 "-%" PRIx64, place->pid, place->start, place->end);
    if ((target->file = open(path, O_RDWR | O_CLOEXEC)) < 0 || fstat(target->file, &status))
        return -errno;
    target->size = target->is_private ? UINT64_MAX : (uint64_t)status.st_size;
    return 0;
}

static int parse_target(const char **text, struct cache *cache, const struct processes *processes, struct target *target)
{
    uint32_t number;
    int end = 0, error;
    char kind;

    target->file = -1;
    if (sscanf(*text, "object %" SCNu32 " %c %zu\n%n", &number, &kind, &target->place_count, &end) != 3 || !end ||
        !target->place_count || target->place_count > OBJECT_PLACES || number <= OBJECTS_TABLE)
        return -EPROTO;
    target->is_private = kind == 'p';
    *text += end;
    for (size_t i = 0; i < target->place_count; i++)
        if (!(*text = parse_place(*text, processes, &target->places[i])))
            return -EPROTO;
    if ((error = open_target(target)))
        return error;
    return cache_take(cache, number, &target->chunks, &target->chunk_count);
}

static int parse_table(const char *text, struct cache *cache, const struct processes *processes, struct filling *filling)
{
    int end = 0, error = 0;
    size_t count;

    if (sscanf(text, "objects %zu\n%n", &count, &end) != 1 || !end || count > strlen(text))
        return -EPROTO;
    text += end;
    if (!(filling->targets = calloc(count + 1, sizeof(*filling->targets))))
        return -ENOMEM;
    while (filling->count < count && !error)
        error = parse_target(&text, cache, processes, &filling->targets[filling->count++]);
    return error;
}

/* Through a mapping: how many bytes, from the first on. */
static uint64_t write_mapped(const struct target *target, uint64_t offset, const uint8_t *bytes, uint64_t size)
{
    for (size_t i = 0; i < target->place_count; i++) {
        const struct place *place = &target->places[i];
        uint64_t base = target->is_private ? 0 : place->offset, length = place->end - place->start, part;
        struct iovec here = {(void *)bytes, 0}, there;
        ssize_t put;

        if (!place->writable || offset < base || offset - base >= length)
            continue;
        part = length - (offset - base);
        here.iov_len = part < size ? part : size;
        there = (struct iovec){(void *)(place->start + (offset - base)), here.iov_len};
        if ((put = process_vm_writev(place->pid, &here, 1, &there, 1, 0)) > 0)
            return (uint64_t)put;
    }
    return 0;
}

static int write_file(const struct target *target, uint64_t offset, const uint8_t *bytes, uint64_t size)
{
    uint64_t base = target->is_private ? target->places[0].start : 0;

    if (size > target->size - offset)
        size = target->size - offset; /* the part of a mapping behind the end is mapped nowhere */
    while (size) {
        ssize_t put = pwrite(target->file, bytes, size, (off_t)(base + offset));

        if (put <= 0)
            return put ? -errno : -EIO;
        offset += (uint64_t)put, bytes += put, size -= (uint64_t)put;
    }
    return 0;
}

/* Anonymous memory ends for CRIU where the last mapping of it does; nobody can see what lay behind. */
static int write_run(const struct target *target, uint64_t offset, const uint8_t *bytes, uint64_t size)
{
    while (size && offset < target->size) {
        uint64_t put = write_mapped(target, offset, bytes, size);
        int error;

        if (!put) {
            if ((error = write_file(target, offset, bytes, PAGE)))
                return error;
            put = PAGE;
        }
        offset += put, bytes += put, size -= put;
    }
    return 0;
}

static int write_chunk(struct filling *filling, const struct target *target, const struct chunk *chunk)
{
    uint64_t present[CHUNK_WORDS];
    int error = 0;

    chunk_present(chunk, 1, present);
    for (unsigned first = 0, end; first < CHUNK_PAGES && !error; first = end + 1) {
        for (end = first; end < CHUNK_PAGES && present[end / 64] >> end % 64 & 1; end++)
            continue;
        if (end > first)
            error = write_run(target, chunk->address + first * PAGE, chunk->bytes + first * PAGE, (end - first) * PAGE);
        filling->bytes += (end - first) * PAGE;
    }
    return error;
}

static struct chunk *next_chunk(struct filling *filling, const struct target **target)
{
    struct chunk *chunk = NULL;

    pthread_mutex_lock(&filling->lock);
    while (filling->target < filling->count && filling->chunk == filling->targets[filling->target].chunk_count)
        filling->target++, filling->chunk = 0;
    if (filling->target < filling->count) {
        *target = &filling->targets[filling->target];
        chunk = (*target)->chunks[filling->chunk++];
    }
    pthread_mutex_unlock(&filling->lock);
    return chunk;
}

/* Gives the memory of each chunk back when it is written. */
static void *fill(void *argument)
{
    struct filling *filling = argument;
    const struct target *target;
    struct chunk *chunk;

    while ((chunk = next_chunk(filling, &target))) {
        int error = filling->error ? 0 : write_chunk(filling, target, chunk), none = 0;

        if (error)
            atomic_compare_exchange_strong(&filling->error, &none, error);
        chunk_put(chunk);
    }
    return NULL;
}

static void fill_all(struct filling *filling)
{
    pthread_t threads[THREADS - 1];
    int started = 0;

    while (started < THREADS - 1 && !pthread_create(&threads[started], NULL, fill, filling))
        started++;
    fill(filling);
    while (started)
        pthread_join(threads[--started], NULL);
}

static void end(struct filling *filling, struct processes *processes)
{
    for (size_t i = 0; i < filling->count; i++) {
        if (filling->targets[i].file >= 0)
            close(filling->targets[i].file);
        free(filling->targets[i].chunks);
    }
    free(filling->targets);
    processes_free(processes);
}

int objects_fill(struct cache *cache, const char *tasks, struct object_totals *totals, char *why, size_t size)
{
    struct filling filling = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct processes processes = {0};
    int error;
    char *text = take_table(cache, &error);

    *totals = (struct object_totals){0};
    if (!error && text && !(error = processes_read(&processes, tasks)))
        error = parse_table(text, cache, &processes, &filling);
    if (error) {
        snprintf(why, size, "shared memory cannot be found again: %s", strerror(-error));
    } else {
        fill_all(&filling);
        if ((error = filling.error))
            snprintf(why, size, "shared memory cannot be written: %s", strerror(-error));
    }
    *totals = (struct object_totals){filling.count, filling.bytes};
    end(&filling, &processes);
    free(text);
    return error;
}
