/* See store.h. */
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROOT = 1, BUCKETS = 256 };

static size_t bucket_of(const struct store *store, uint64_t inode)
{
    return (size_t)(inode * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (store->bucket_count - 1);
}

struct item *store_of_inode(const struct store *store, uint64_t inode)
{
    struct item *item = store->bucket_count ? store->buckets[bucket_of(store, inode)] : NULL;

    while (item && item->inode != inode)
        item = item->next;
    return item;
}

static int widen(struct store *store)
{
    size_t count = store->bucket_count ? 2 * store->bucket_count : BUCKETS;
    struct item **buckets = calloc(count, sizeof(*buckets));

    if (!buckets)
        return -ENOMEM;
    free(store->buckets);
    store->buckets = buckets, store->bucket_count = count;
    for (size_t i = 0; i < store->count; i++)
        if (store->items[i]) {
            struct item **bucket = &buckets[bucket_of(store, store->items[i]->inode)];

            store->items[i]->next = *bucket;
            *bucket = store->items[i];
        }
    return 0;
}

static void forget(struct store *store, const struct item *item)
{
    struct item **at = &store->buckets[bucket_of(store, item->inode)];

    while (*at && *at != item)
        at = &(*at)->next;
    if (*at)
        *at = item->next;
}

static int keep(struct store *store, struct item *item)
{
    struct item **bucket;

    if (store->left >= store->bucket_count && widen(store))
        return -ENOMEM;
    if (item->number >= store->room) {
        size_t room = 2 * (size_t)item->number + BUCKETS;
        struct item **more = realloc(store->items, room * sizeof(*more));

        if (!more)
            return -ENOMEM;
        memset(more + store->room, 0, (room - store->room) * sizeof(*more));
        store->items = more, store->room = room;
    }
    bucket = &store->buckets[bucket_of(store, item->inode)];
    item->next = *bucket;
    *bucket = item;
    store->items[item->number] = item;
    store->count = (size_t)item->number + 1;
    store->left++;
    return 0;
}

static struct item *find(const struct store *store, uint64_t number)
{
    return number < store->count ? store->items[number] : NULL;
}

static struct item *find_type(const struct store *store, uint64_t number, mode_t type)
{
    struct item *item = find(store, number);

    return item && (item->meta.mode & S_IFMT) == type ? item : NULL;
}

static void touch(struct store *store, struct item *item)
{
    if (item->touched_at)
        return;
    item->next_touched = store->touched;
    item->touched_at = &store->touched;
    if (item->next_touched)
        item->next_touched->touched_at = &item->next_touched;
    store->touched = item;
}

void store_untouch(struct item *item)
{
    *item->touched_at = item->next_touched;
    if (item->next_touched)
        item->next_touched->touched_at = item->touched_at;
    item->touched_at = NULL;
}

void store_staged_name(uint64_t number, char name[WIRE_NAME_MAX + 1])
{
    snprintf(name, WIRE_NAME_MAX + 1, "%" PRIu64, number);
}

static void set_opened(struct store_opened *opened, uint64_t number, int fd)
{
    if (opened->number)
        close(opened->fd);
    *opened = (struct store_opened){number, fd};
}

static void close_opened(struct store_opened *opened, uint64_t number)
{
    if (opened->number == number)
        set_opened(opened, 0, -1);
}

/* A descriptor of a directory, which stays open until others were opened. Or negative errno. */
static int open_directory(struct store *store, const struct item *item, int depth)
{
    struct store_opened *opened = &store->directories[item->number % STORE_DIRECTORIES];
    char name[WIRE_NAME_MAX + 1];
    int above, fd;

    if (item->number == ROOT)
        return store->root;
    if (opened->number == item->number)
        return opened->fd;
    if (depth == STORE_DEEPEST)
        return -ENAMETOOLONG;
    if (item->parent) {
        above = open_directory(store, item->parent, depth + 1);
        snprintf(name, sizeof(name), "%s", item->name);
    } else {
        above = store->staging;
        store_staged_name(item->number, name);
    }
    if (above < 0)
        return above;
    fd = openat(above, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    set_opened(opened, item->number, fd);
    return fd;
}

int store_place(struct store *store, const struct item *item, int *directory, char name[WIRE_NAME_MAX + 1])
{
    if (item->number == ROOT) {
        *directory = store->root;
        strcpy(name, ".");
    } else if (item->parent) {
        *directory = open_directory(store, item->parent, 0);
        snprintf(name, WIRE_NAME_MAX + 1, "%s", item->name);
    } else {
        *directory = store->staging;
        store_staged_name(item->number, name);
    }
    return *directory < 0 ? *directory : 0;
}

static int open_file(struct store *store, const struct item *item)
{
    struct store_opened *opened = &store->files[item->number % STORE_FILES];
    char name[WIRE_NAME_MAX + 1];
    int fd;

    if (opened->number == item->number)
        return opened->fd;
    store_staged_name(item->number, name);
    if ((fd = openat(store->staging, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)) < 0)
        return -errno;
    set_opened(opened, item->number, fd);
    return fd;
}

/* Makes an inode in the staging directory. The root is there. */
static int make(const struct store *store, const struct item *item)
{
    mode_t type = item->meta.mode & S_IFMT;
    char name[WIRE_NAME_MAX + 1];
    int fd;

    store_staged_name(item->number, name);
    if (item->number == ROOT)
        return type == S_IFDIR ? 0 : -EPROTO;
    if (type == S_IFDIR)
        return mkdirat(store->staging, name, 0700) ? -errno : 0;
    if (type == S_IFLNK)
        return symlinkat(item->meta.target, store->staging, name) ? -errno : 0;
    if (type != S_IFREG)
        return mknodat(store->staging, name, type | 0600, item->meta.device) ? -errno : 0;
    if ((fd = openat(store->staging, name, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600)) < 0)
        return -errno;
    close(fd);
    return 0;
}

static void item_free(struct item *item)
{
    page_sums_free(&item->sums);
    free(item->payload);
    free(item->name);
    free(item);
}

/* Gives an item the values of the payload; the item points into its own copy. */
static int take_payload(struct item *item, const uint8_t *payload, size_t size)
{
    uint8_t *copy = malloc(size);

    if (!copy)
        return -ENOMEM;
    memcpy(copy, payload, size);
    free(item->payload);
    item->payload = copy;
    return meta_parse(copy, size, &item->meta);
}

static int add_item(struct store *store, uint64_t number, const uint8_t *payload, size_t size)
{
    struct item *item;
    struct stat status;
    char name[WIRE_NAME_MAX + 1];
    int directory, error;

    if (number != (store->count ? store->count : ROOT) || number >= WIRE_NUMBERS)
        return -EPROTO;
    if (!(item = calloc(1, sizeof(*item))))
        return -ENOMEM;
    item->number = number;
    error = take_payload(item, payload, size);
    if (!error)
        error = make(store, item);
    if (!error)
        error = store_place(store, item, &directory, name);
    if (!error && fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW))
        error = -errno;
    if (!error) {
        item->inode = status.st_ino;
        error = keep(store, item);
    }
    if (error)
        item_free(item);
    else
        touch(store, item);
    return error;
}

static int is_same_kind(const struct meta *a, const struct meta *b)
{
    return (a->mode & S_IFMT) == (b->mode & S_IFMT) && a->device == b->device && !a->target == !b->target &&
           (!a->target || !strcmp(a->target, b->target));
}

static int apply_meta(struct store *store, uint64_t number, const uint8_t *payload, size_t size)
{
    struct item *item = find(store, number);
    struct meta meta;

    if (!item)
        return add_item(store, number, payload, size);
    if (meta_parse(payload, size, &meta) || !is_same_kind(&meta, &item->meta))
        return -EPROTO;
    touch(store, item);
    return take_payload(item, payload, size);
}

static int link_directory(struct store *store, struct item *parent, struct item *item, int above, const char *name)
{
    char staged[WIRE_NAME_MAX + 1], *copy;

    if (item->parent || item->number == ROOT)
        return -EPROTO;
    if (!(copy = strdup(name)))
        return -ENOMEM;
    store_staged_name(item->number, staged);
    if (renameat2(store->staging, staged, above, name, RENAME_NOREPLACE)) {
        free(copy);
        return -errno;
    }
    free(item->name);
    item->name = copy, item->parent = parent;
    return 0;
}

static int unlink_directory(const struct store *store, const struct item *parent, struct item *item, int above,
                            const char *name)
{
    char staged[WIRE_NAME_MAX + 1];

    if (item->parent != parent || strcmp(item->name, name))
        return -EPROTO;
    store_staged_name(item->number, staged);
    if (renameat2(above, name, store->staging, staged, RENAME_NOREPLACE))
        return -errno;
    item->parent = NULL;
    return 0;
}

static int link_file(const struct store *store, struct item *item, int above, const char *name)
{
    char staged[WIRE_NAME_MAX + 1];

    store_staged_name(item->number, staged);
    if (linkat(store->staging, staged, above, name, 0))
        return -errno;
    item->names++;
    return 0;
}

static int unlink_file(struct item *item, int above, const char *name)
{
    struct stat status;

    if (fstatat(above, name, &status, AT_SYMLINK_NOFOLLOW))
        return -errno;
    if (status.st_ino != item->inode || !item->names)
        return -EPROTO;
    if (unlinkat(above, name, 0))
        return -errno;
    item->names--;
    return 0;
}

static int apply_name(struct store *store, const struct wire_frame *frame, const uint8_t *payload)
{
    struct item *parent = find_type(store, frame->number, S_IFDIR), *item = find(store, frame->at);
    char name[WIRE_NAME_MAX + 1];
    int above;

    if (!parent || !item || wire_name(payload, frame->length, name))
        return -EPROTO;
    if ((above = open_directory(store, parent, 0)) < 0)
        return above;
    touch(store, parent);
    if (S_ISDIR(item->meta.mode))
        return frame->type == 'L' ? link_directory(store, parent, item, above, name)
                                  : unlink_directory(store, parent, item, above, name);
    return frame->type == 'L' ? link_file(store, item, above, name) : unlink_file(item, above, name);
}

static int apply_gone(struct store *store, uint64_t number)
{
    struct item *item = find(store, number);
    char name[WIRE_NAME_MAX + 1];

    if (!item || item->parent || item->names)
        return -EPROTO;
    store_staged_name(number, name);
    close_opened(&store->directories[number % STORE_DIRECTORIES], number);
    close_opened(&store->files[number % STORE_FILES], number);
    if (unlinkat(store->staging, name, S_ISDIR(item->meta.mode) ? AT_REMOVEDIR : 0))
        return -errno; /* also when it is not empty */
    if (item->touched_at)
        store_untouch(item);
    forget(store, item);
    store->items[number] = NULL;
    store->left--;
    item_free(item);
    return 0;
}

static int apply_size(struct store *store, struct item *item, uint64_t size)
{
    int file = open_file(store, item);

    if (file < 0)
        return file;
    touch(store, item);
    if (size < item->size) {
        if (ftruncate(file, (off_t)(size / PAGE_SUMS_PAGE * PAGE_SUMS_PAGE)))
            return -errno;
        page_sums_clear(&item->sums, size / PAGE_SUMS_PAGE, UINT64_MAX / PAGE_SUMS_PAGE);
    }
    if (ftruncate(file, (off_t)size))
        return -errno;
    item->size = size;
    return 0;
}

static int write_all(int file, const uint8_t *bytes, size_t count, uint64_t at)
{
    while (count) {
        ssize_t done = pwrite(file, bytes, count, (off_t)at);

        if (done < 0 && errno != EINTR)
            return -errno;
        if (done > 0)
            bytes += done, at += (uint64_t)done, count -= (size_t)done;
    }
    return 0;
}

/* The checksums are those of the written contents, and not of the received ones. */
static int read_back(struct item *item, int file, size_t count, uint64_t at)
{
    static uint8_t bytes[WIRE_DATA_MAX];
    size_t pages = (count + PAGE_SUMS_PAGE - 1) / PAGE_SUMS_PAGE, have = 0;
    struct page_sum *sums = page_sums_make(&item->sums, at / PAGE_SUMS_WINDOW);
    unsigned first = (unsigned)(at / PAGE_SUMS_PAGE % PAGE_SUMS_PAGES);

    if (!sums)
        return -ENOMEM;
    while (have < count) {
        ssize_t got = pread(file, bytes + have, count - have, (off_t)(at + have));

        if (!got || (got < 0 && errno != EINTR))
            return got ? -errno : -EIO;
        have += got < 0 ? 0 : (size_t)got;
    }
    memset(bytes + count, 0, pages * PAGE_SUMS_PAGE - count);
    for (size_t i = 0; i < pages; i++)
        sums[first + i] = page_sum_of(bytes + i * PAGE_SUMS_PAGE);
    return 0;
}

static int apply_data(struct store *store, struct item *item, uint64_t at, const uint8_t *bytes, size_t count)
{
    int file = open_file(store, item), error;

    if (file < 0)
        return file;
    if (at >= item->size || (count > PAGE_SUMS_PAGE && count - PAGE_SUMS_PAGE >= item->size - at))
        return -EPROTO;
    count = count < item->size - at ? count : (size_t)(item->size - at);
    touch(store, item);
    error = write_all(file, bytes, count, at);
    return error ? error : read_back(item, file, count, at);
}

static int apply_hole(struct store *store, struct item *item, uint64_t at, const uint8_t *payload)
{
    int file = open_file(store, item);
    uint64_t count;

    if (file < 0)
        return file;
    count = wire_number(payload);
    if (!count || count % PAGE_SUMS_PAGE || at >= item->size)
        return -EPROTO;
    touch(store, item);
    count = count < INT64_MAX - at ? count : INT64_MAX - at; /* whole pages, as a part of one would be zeroed and kept */
    if (fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)count))
        return -errno;
    page_sums_clear(&item->sums, at / PAGE_SUMS_PAGE, (at + count + PAGE_SUMS_PAGE - 1) / PAGE_SUMS_PAGE);
    return 0;
}

int store_apply(struct store *store, const struct wire_frame *frame, const uint8_t *payload)
{
    struct item *file = find_type(store, frame->number, S_IFREG);

    if (frame->type == 'I')
        return apply_meta(store, frame->number, payload, frame->length);
    if (frame->type == 'L' || frame->type == 'U')
        return apply_name(store, frame, payload);
    if (frame->type == 'X')
        return apply_gone(store, frame->number);
    if (!file)
        return -EPROTO;
    if (frame->type == 'S')
        return apply_size(store, file, frame->at);
    if (frame->type == 'D')
        return apply_data(store, file, frame->at, payload, frame->length);
    return frame->type == 'H' ? apply_hole(store, file, frame->at, payload) : -EPROTO;
}

void store_close_files(struct store *store)
{
    for (size_t i = 0; i < STORE_FILES; i++)
        set_opened(&store->files[i], 0, -1);
}

void store_free(struct store *store)
{
    for (size_t i = 0; i < STORE_DIRECTORIES; i++)
        set_opened(&store->directories[i], 0, -1);
    store_close_files(store);
    for (size_t i = 0; i < store->count; i++)
        if (store->items[i])
            item_free(store->items[i]);
    free(store->items);
    free(store->buckets);
    *store = (struct store){0};
}
