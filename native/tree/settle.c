/* The end of a pass at the destination; see store.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "record.h"
#include "store.h"

/* The names that a directory has. */
static int read_names(const struct store *store, struct item *item, int above, const char *name)
{
    int fd = openat(above, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), error = 0;
    DIR *list = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;

    if (!list) {
        error = -errno;
        if (fd >= 0)
            close(fd);
        return error;
    }
    item->names_record = (struct page_sum){0}, item->names_count = 0;
    while (!error && (errno = 0, entry = readdir(list))) {
        const struct item *below;

        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        below = store_of_inode(store, entry->d_ino);
        if (below)
            record_add(&item->names_record, record_of_name(item->number, below->number, entry->d_name));
        else
            error = -EBADMSG;
        item->names_count++;
    }
    if (!error)
        error = -errno;
    closedir(list);
    return error;
}

static int settle(struct store *store, struct item *item, struct bytes *meta)
{
    char name[WIRE_NAME_MAX + 1];
    struct stat status;
    int directory, error = store_place(store, item, &directory, name);

    if (!error)
        error = meta_apply(directory, name, &item->meta);
    if (!error && fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW))
        error = -errno;
    if (!error && S_ISREG(status.st_mode) && (uint64_t)status.st_size != item->size)
        error = -EBADMSG;
    if (!error)
        error = meta_read(directory, name, &status, meta);
    if (!error)
        item->record = record_of_inode(item->number, meta->data, meta->count, item->size, &item->sums);
    if (!error && S_ISDIR(status.st_mode))
        error = read_names(store, item, directory, name);
    return error;
}

int store_settle(struct store *store)
{
    struct bytes meta = {0};
    int error = 0;

    while (store->touched && !error) {
        struct item *item = store->touched;

        store_untouch(item);
        error = settle(store, item, &meta);
    }
    free(meta.data);
    return error;
}

static int leave_staging(const struct store *store, const struct item *item)
{
    char name[WIRE_NAME_MAX + 1];

    if (S_ISDIR(item->meta.mode))
        return item->parent || item->number == 1 ? 0 : -EBADMSG;
    if (!item->names)
        return -EBADMSG;
    store_staged_name(item->number, name);
    return unlinkat(store->staging, name, 0) ? -errno : 0;
}

int store_finish(struct store *store, uint64_t count, struct page_sum all)
{
    struct page_sum here = {0};
    uint64_t have = 0;
    int error = 0;

    store_close_files(store); /* nobody can execute a file that is open to be written */
    for (size_t i = 0; i < store->count && !error; i++) {
        const struct item *item = store->items[i];

        if (!item)
            continue;
        error = leave_staging(store, item);
        record_add(&here, item->record);
        record_add(&here, item->names_record);
        have += 1 + item->names_count;
    }
    if (!error && (have != count || !page_sum_equals(here, all)))
        error = -EBADMSG;
    return error;
}
