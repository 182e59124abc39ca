/* See objects.h. */
#include "objects.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "read_pages.h"
#include "sender.h"
#include "tracker.h"
#include "wp_async.h"

enum {
    LEAST = 1 << 20,     /* bytes of an object */
    MOST_SMALL = 512,    /* are opened to see whether they are */
    MOST_CARRIED = 256,  /* each has a descriptor here */
    LOOKED_AT = 4096,    /* pages, of all objects, when it is measured what has changed */
    REGIONS = 512,
    SEALED = 0x8 | 0x10, /* F_SEAL_WRITE, F_SEAL_FUTURE_WRITE */
};

static const uint64_t MOST = UINT64_C(1) << 56; /* the stream has no addresses behind */

static bool is_same(const struct object *object, const struct mapping *mapping)
{
    return object->memory == mapping->memory && object->device == mapping->device && object->inode == mapping->inode &&
           (object->memory != MEMORY_HUGE_PRIVATE || object->start == mapping->start);
}

static struct object *find(const struct objects *objects, const struct mapping *mapping)
{
    for (size_t i = 0; i < objects->count; i++)
        if (is_same(objects->list[i], mapping))
            return objects->list[i];
    return NULL;
}

static struct object *make(struct objects *objects, const struct mapping *mapping)
{
    struct object *object;

    if (objects->count == objects->room) {
        size_t room = objects->room ? 2 * objects->room : 16;
        struct object **more = realloc(objects->list, room * sizeof(*more));

        if (!more)
            return NULL;
        objects->list = more;
        objects->room = room;
    }
    if (!(object = calloc(1, sizeof(*object))))
        return NULL;
    *object = (struct object){.number = OBJECTS_TABLE + ++objects->last_number,
                              .memory = mapping->memory,
                              .device = mapping->device,
                              .inode = mapping->inode,
                              .start = mapping->start,
                              .file = -1};
    return objects->list[objects->count++] = object;
}

static void add_place(struct object *object, const struct process *process, const struct mapping *mapping)
{
    if (object->place_count < OBJECT_PLACES)
        object->places[object->place_count++] = (struct place){.pid = process->pid,
                                                               .pagemap = process->pagemap,
                                                               .ns_pid = process->ns_pid,
                                                               .start = mapping->start,
                                                               .end = mapping->end,
                                                               .offset = mapping->offset,
                                                               .writable = mapping->writable};
}

static void close_file(struct object *object)
{
    if (object->file >= 0)
        close(object->file);
    object->file = -1;
}

static bool open_place(struct object *object, const struct place *place, struct stat *status)
{
    char path[96];

    close_file(object);
    snprintf(path, sizeof(path), "/proc/%d/map_files/%" PRIx64 "-%" PRIx64, place->pid, place->start, place->end);
    object->file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    return object->file >= 0 && !fstat(object->file, status) && S_ISREG(status->st_mode) &&
           status->st_dev == object->device && status->st_ino == object->inode;
}

/* Opens the memory that is mapped now, whatever had its number before; in any of its places, as some may have ended. */
static bool open_file(struct object *object, struct stat *status)
{
    for (size_t i = 0; i < object->place_count; i++)
        if (open_place(object, &object->places[i], status))
            return true;
    return false;
}

static bool is_carriable_file(struct object *object)
{
    struct stat status;
    struct statfs system;
    int seals;

    if (!open_file(object, &status) || fstatfs(object->file, &system))
        return false;
    object->size = (uint64_t)status.st_size;
    seals = fcntl(object->file, F_GET_SEALS);
    return system.f_type == TMPFS_MAGIC && object->size < MOST && (seals < 0 || !(seals & SEALED));
}

/* Of private memory no other process may have a part. */
static bool is_alone(const struct objects *objects, const struct object *object)
{
    for (size_t i = 0; i < objects->count; i++) {
        const struct object *other = objects->list[i];

        if (other->memory == MEMORY_HUGE_PRIVATE && other->device == object->device && other->inode == object->inode &&
            other->place_count && (other->place_count > 1 || other->places[0].pid != object->places[0].pid))
            return false;
    }
    return true;
}

/* Linux 6.7 and later. */
static bool can_be_scanned(const struct place *place)
{
    struct pm_scan_arg scan = {.size = sizeof(scan), .start = place->start, .end = place->end, .max_pages = 1};

    return ioctl(place->pagemap, PAGEMAP_SCAN, &scan) >= 0;
}

static bool is_carriable(const struct objects *objects, struct object *object)
{
    if (!object->place_count)
        return false;
    if (object->memory == MEMORY_HUGE_PRIVATE) {
        object->size = object->places[0].end - object->places[0].start;
        return object->places[0].writable && is_alone(objects, object) && can_be_scanned(&object->places[0]);
    }
    return is_carriable_file(object) && object->size >= LEAST;
}

/* Memory that is mapped only in small parts may yet be large, but a node may have very many small objects. */
static int look_at_mappings(struct objects *objects, const struct process *process, bool large)
{
    for (size_t i = 0; i < process->mappings.count; i++) {
        const struct mapping *mapping = &process->mappings.list[i];
        struct object *object;

        if (mapping->memory == MEMORY_OTHER || (mapping->offset + mapping->end - mapping->start >= LEAST) != large)
            continue;
        if (!(object = find(objects, mapping))) {
            if (!large && objects->count >= MOST_SMALL)
                continue;
            if (!(object = make(objects, mapping)))
                return -ENOMEM;
        }
        add_place(object, process, mapping);
    }
    return 0;
}

int objects_look(struct objects *objects, const struct process *processes, size_t count)
{
    unsigned int carried = 0;
    int error = 0;

    for (size_t i = 0; i < objects->count; i++)
        objects->list[i]->place_count = 0;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < count && !error; i++)
            if (processes[i].listed)
                error = look_at_mappings(objects, &processes[i], !pass);
    for (size_t i = 0; i < objects->count; i++) {
        struct object *object = objects->list[i];

        object->skipped = false;
        object->listed = is_carriable(objects, object) && ++carried <= MOST_CARRIED;
        if (!object->listed)
            close_file(object);
    }
    return error;
}

static void free_object(struct object *object)
{
    close_file(object);
    page_set_free(&object->pages);
    page_set_free(&object->owed);
    page_sums_free(&object->sums);
    free(object);
}

/* Of objects that are not listed; the sender's threads read none of them any more. */
static int send_ends(struct objects *objects)
{
    size_t kept = 0;
    int error = 0;

    for (size_t i = 0; i < objects->count; i++) {
        struct object *object = objects->list[i];

        if (!object->listed && !error && object->pages.room)
            error = sender_add_end(object->number);
        if (object->listed || error)
            objects->list[kept++] = object;
        else
            free_object(object);
    }
    objects->count = kept;
    return error;
}

static int each_extent(const struct object *object, struct page_set *pages)
{
    off_t start, end = 0;
    int error = 0;

    while (!error && (start = lseek(object->file, end, SEEK_DATA)) >= 0) {
        if ((end = lseek(object->file, start, SEEK_HOLE)) < 0)
            break; /* it has shrunk */
        end = (end + STREAM_PAGE - 1) & -(off_t)STREAM_PAGE;
        error = page_set_add(pages, (uint64_t)start & -(uint64_t)STREAM_PAGE, (uint64_t)end);
    }
    return error ? error : start < 0 && errno != ENXIO ? -errno : 0;
}

static int each_present(const struct object *object, struct page_set *pages)
{
    const struct place *place = &object->places[0];
    struct page_region found[REGIONS];
    struct pm_scan_arg scan = {.size = sizeof(scan),
                               .start = place->start,
                               .end = place->end,
                               .vec = (uintptr_t)found,
                               .vec_len = REGIONS,
                               .category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                               .return_mask = PAGE_IS_PRESENT};
    int count, error = 0;

    while (!error && scan.start < scan.end) {
        if ((count = ioctl(place->pagemap, PAGEMAP_SCAN, &scan)) < 0)
            return errno == ESRCH ? 0 : -errno;
        for (int i = 0; i < count && !error; i++)
            error = page_set_add(pages, found[i].start - place->start, found[i].end - place->start);
        scan.start = scan.walk_end;
    }
    return error;
}

static struct source source_of(struct object *object)
{
    struct source source = {.pagemap = -1, .ns_pid = object->number, .sums = &object->sums, .owed = &object->owed};

    source.memory = object->file;
    if (object->memory == MEMORY_HUGE_PRIVATE) {
        source.pid = object->places[0].pid;
        source.base = object->start;
    }
    return source;
}

static int send_part(void *context, uint64_t start, uint64_t end)
{
    struct source source = source_of(context);

    return sender_add_of(&source, start, end, false);
}

static int send_hole(void *context, uint64_t start, uint64_t end)
{
    struct source source = source_of(context);

    return sender_add_of(&source, start, end, true);
}

static int send_object(struct object *object)
{
    struct page_set now = {0}, gone = {0};
    int error = object->memory == MEMORY_HUGE_PRIVATE ? each_present(object, &now) : each_extent(object, &now);

    if (!error && !(error = page_set_add_all(&gone, &object->pages))) {
        page_set_remove_all(&gone, &now);
        error = page_set_each(&gone, send_hole, object);
    }
    if (!error)
        error = page_set_each(&now, send_part, object);
    page_set_free(&gone);
    page_set_free(&object->pages);
    object->pages = now;
    return error;
}

int objects_send(struct objects *objects)
{
    int error = send_ends(objects);

    for (size_t i = 0; i < objects->count && !error; i++)
        error = send_object(objects->list[i]);
    return error;
}

void objects_sent(struct objects *objects)
{
    for (size_t i = 0; i < objects->count; i++)
        page_set_clear(&objects->list[i]->owed);
}

static void write_object(FILE *text, const struct object *object)
{
    fprintf(text, "object %" PRIu32 " %c %zu\n", object->number, object->memory == MEMORY_HUGE_PRIVATE ? 'p' : 's',
            object->place_count);
    for (size_t i = 0; i < object->place_count; i++) {
        const struct place *place = &object->places[i];

        fprintf(text, "%" PRIu32 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %d\n", place->ns_pid, place->start, place->end,
                place->offset, place->writable);
    }
}

/* Into memory that only grows, so the rest of an earlier, longer one becomes zero. */
static int make_table(struct objects *objects)
{
    char *text = NULL, *table;
    size_t size = 0, room;
    FILE *stream = open_memstream(&text, &size);

    if (!stream)
        return -errno;
    fprintf(stream, "objects %zu\n", objects->count);
    for (size_t i = 0; i < objects->count; i++)
        write_object(stream, objects->list[i]);
    if (fclose(stream)) {
        free(text);
        return -ENOMEM;
    }
    room = (size + STREAM_PAGE) & -(size_t)STREAM_PAGE; /* a zero byte ends it */
    room = room > objects->table_room ? room : objects->table_room;
    if ((table = calloc(1, room))) {
        memcpy(table, text, size);
        free(objects->table);
        objects->table = table;
        objects->table_room = room;
    }
    free(text);
    return table ? 0 : -ENOMEM;
}

/* The sender reads it from our own memory. */
static int send_table(struct objects *objects)
{
    struct source source = {.pid = getpid(), .memory = -1, .pagemap = -1, .ns_pid = OBJECTS_TABLE};
    int error;

    if (!objects->count && !objects->table)
        return 0;
    if ((error = make_table(objects)))
        return error;
    source.base = (uintptr_t)objects->table;
    return sender_add_of(&source, 0, objects->table_room, false);
}

int objects_send_last(struct objects *objects)
{
    int error;

    for (size_t i = 0; i < objects->count; i++)
        if (objects->list[i]->memory == MEMORY_HUGE_PRIVATE && !objects->list[i]->skipped)
            objects->list[i]->listed = false;
    error = objects_send(objects);
    return error ? error : send_table(objects);
}

struct object *objects_find_private(struct objects *objects, int pid, uint64_t start)
{
    for (size_t i = 0; i < objects->count; i++) {
        struct object *object = objects->list[i];

        if (object->listed && object->memory == MEMORY_HUGE_PRIVATE && object->start == start &&
            object->places[0].pid == pid)
            return object;
    }
    return NULL;
}

uint64_t objects_size(const struct objects *objects)
{
    uint64_t bytes = 0;
    struct stat status;

    for (size_t i = 0; i < objects->count; i++) {
        const struct object *object = objects->list[i];

        if (!object->listed)
            continue;
        if (object->memory == MEMORY_HUGE_PRIVATE)
            bytes += object->size; /* hardly ever with holes */
        else if (!fstat(object->file, &status))
            bytes += (uint64_t)status.st_blocks * 512;
    }
    return bytes;
}

/* A look at each `step`-th run of pages. */
struct measuring {
    struct object *object;
    uint64_t run, step, pages, changed;
    uint8_t *bytes;
};

static int count_run(void *context, uint64_t start, uint64_t end)
{
    struct measuring *measuring = context;

    (void)start, (void)end;
    measuring->pages += (end - start) / STREAM_PAGE;
    return 0;
}

static int look_at(struct measuring *measuring, uint64_t start, uint32_t pages)
{
    static struct batch batch;
    enum page_state states[STREAM_PAGES_MAX];
    int error = 0;

    batch = (struct batch){.source = source_of(measuring->object), .pages = pages, .count = 1};
    batch.ranges[0] = (struct range){start, pages, false};
    read_pages(&batch, measuring->bytes, states);
    for (uint32_t i = 0; i < pages && !error; i++) {
        uint64_t address = start + (uint64_t)i * STREAM_PAGE;

        if (states[i] == PAGE_IS_GONE || page_set_has(&measuring->object->owed, address))
            continue;
        measuring->changed++;
        error = page_set_add(&measuring->object->owed, address, address + STREAM_PAGE);
    }
    return error;
}

static int look_at_run(void *context, uint64_t start, uint64_t end)
{
    struct measuring *measuring = context;
    int error = 0;

    if (measuring->run++ % measuring->step)
        return 0;
    while (start < end && !error) {
        uint64_t pages = (end - start) / STREAM_PAGE, most = STREAM_PAGES_MAX;
        uint32_t part = (uint32_t)(pages < most ? pages : most);

        error = look_at(measuring, start, part);
        start += (uint64_t)part * STREAM_PAGE;
    }
    return error;
}

int objects_measure(struct objects *objects, uint64_t *bytes)
{
    struct measuring measuring = {0};
    int error = 0;

    *bytes = 0;
    for (size_t i = 0; i < objects->count; i++)
        page_set_each(&objects->list[i]->pages, count_run, &measuring);
    if (!measuring.pages)
        return 0;
    if (!(measuring.bytes = malloc((size_t)STREAM_PAGES_MAX * STREAM_PAGE)))
        return -ENOMEM;
    measuring.step = (measuring.pages + LOOKED_AT - 1) / LOOKED_AT;
    for (size_t i = 0; i < objects->count && !error; i++) {
        measuring.object = objects->list[i];
        if (measuring.object->listed)
            error = page_set_each(&measuring.object->pages, look_at_run, &measuring);
    }
    free(measuring.bytes);
    read_pages_failed(); /* a process that has just ended */
    *bytes = measuring.changed * measuring.step * STREAM_PAGE;
    return error;
}

void objects_free(struct objects *objects)
{
    for (size_t i = 0; i < objects->count; i++)
        free_object(objects->list[i]);
    free(objects->list);
    free(objects->table);
    *objects = (struct objects){0};
}
