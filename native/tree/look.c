/* The inodes of the directory, by name and status; see source.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "source.h"

/* Gone, or another one by now: the next pass finds the new one. */
static bool is_vanished(int error)
{
    return error == -ENOENT || error == -ENOTDIR || error == -ELOOP || error == -EINVAL || error == -ESTALE ||
           error == -EACCES || error == -ENODATA;
}

static bool is_same_status(const struct stat *a, const struct stat *b)
{
    return a->st_mode == b->st_mode && a->st_uid == b->st_uid && a->st_gid == b->st_gid && a->st_rdev == b->st_rdev &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* Whether a change that comes now could leave the same time of change. */
static bool is_fresh(const struct stat *status)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return nanoseconds(now) - nanoseconds(status->st_ctim) < COARSE_NS;
}

/* Its record, read anew unless its status shows that nothing has changed. */
static int take_meta(struct inode *inode, int directory, const char *name, const struct stat *status)
{
    bool fresh = is_fresh(status);
    struct bytes meta = {0};
    int error;

    if (!inode->is_fresh && is_same_status(&inode->status, status)) {
        inode->status = *status;
        return 0;
    }
    if ((error = meta_read(directory, name, status, &meta))) {
        free(meta.data);
        return error;
    }
    inode->status = *status;
    inode->is_fresh = fresh;
    if (meta.count == inode->meta.count && !memcmp(meta.data, inode->meta.data, meta.count)) {
        free(meta.data);
        return 0;
    }
    free(inode->meta.data);
    inode->meta = meta;
    inode->is_sent = false;
    return 0;
}

/* A link or a device whose status has changed may be another one with the same number. */
static bool is_replaced(const struct source *source, const struct inode *inode, const struct stat *status)
{
    return !S_ISREG(status->st_mode) && !S_ISDIR(status->st_mode) && inode->meta.count && inode->seen != source->pass &&
           (inode->is_fresh || !is_same_status(&inode->status, status));
}

static int take(struct source *source, int directory, const char *name, const struct stat *status, struct inode **found)
{
    struct inode *inode = inodes_take(&source->inodes, status);
    int error;

    if (inode && is_replaced(source, inode, status)) {
        inodes_forget(&source->inodes, inode);
        inode = inodes_take(&source->inodes, status);
    }
    if (!inode)
        return -ENOMEM;
    *found = inode;
    if (inode->seen == source->pass)
        return S_ISDIR(status->st_mode) ? -ESTALE : 0; /* it was moved while we looked */
    if ((error = take_meta(inode, directory, name, status)))
        return error;
    inode->seen = source->pass;
    return 0;
}

/* A file or a link, a FIFO, a device. Sockets stay, and other file systems, which nodes cannot have here. */
static int look_at_file(struct source *source, struct inode *parent, int directory, const char *name,
                        const struct stat *status)
{
    struct inode *inode;
    int error;

    if (S_ISSOCK(status->st_mode) || status->st_dev != source->root->status.st_dev)
        return 0;
    error = take(source, directory, name, status, &inode);
    return error ? error : names_add(&parent->found, name, inode);
}

static int look_into(struct source *source, struct inode *inode, int directory, int depth);

static int look_at_directory(struct source *source, struct inode *parent, int directory, const char *name, int depth)
{
    int below = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_NOATIME | O_CLOEXEC);
    struct inode *inode;
    struct stat status;
    int error;

    if (below < 0)
        return -errno;
    error = fstat(below, &status) ? -errno : 0;
    if (!error && status.st_dev == source->root->status.st_dev) {
        if (depth == DEEPEST)
            error = -ENAMETOOLONG;
        if (!error)
            error = take(source, below, ".", &status, &inode);
        if (!error)
            error = names_add(&parent->found, name, inode);
        if (!error)
            error = look_into(source, inode, below, depth + 1);
    }
    close(below);
    return error;
}

static int look_at(struct source *source, struct inode *parent, int directory, const char *name, int depth)
{
    struct stat status;
    int error;

    if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW))
        error = -errno;
    else if (S_ISDIR(status.st_mode))
        error = look_at_directory(source, parent, directory, name, depth);
    else
        error = look_at_file(source, parent, directory, name, &status);
    return is_vanished(error) && !source->is_last ? 0 : error;
}

/* All names, before any of them is looked at: the list is not open for long. */
static int read_names(int directory, struct names *names)
{
    int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_NOATIME | O_CLOEXEC), error = 0;
    DIR *list = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *entry;

    if (!list) {
        error = -errno;
        if (copy >= 0)
            close(copy);
        return error;
    }
    while (!error && (errno = 0, entry = readdir(list)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            error = names_add(names, entry->d_name, NULL);
    if (!error)
        error = -errno;
    closedir(list);
    return error;
}

static int look_into(struct source *source, struct inode *inode, int directory, int depth)
{
    struct names names = {0};
    const char *before = "";
    int error = read_names(directory, &names);

    names_free(&inode->found);
    names_sort(&names);
    for (size_t i = 0; i < names.count && !error; i++) {
        const char *name = name_text(&names, &names.list[i]);

        if (strcmp(name, before)) /* a name that was renamed to and fro may be listed twice */
            error = look_at(source, inode, directory, name, depth);
        before = name;
    }
    names_free(&names);
    return error;
}

int look_at_all(struct source *source)
{
    struct stat status;
    int error;

    if (fstat(source->directory, &status))
        return -errno;
    error = take(source, source->directory, ".", &status, &source->root);
    if (error)
        return error;
    return look_into(source, source->root, source->directory, 0);
}
