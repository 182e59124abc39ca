/* Names of files for CRIU's dump; see criu.c, WHERRY_CRIU_ROOT. */
#include "proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool is_name_of(const struct stat *file, int directory, const char *name)
{
    struct stat found;

    return !fstatat(directory, name, &found, AT_SYMLINK_NOFOLLOW) && found.st_dev == file->st_dev &&
           found.st_ino == file->st_ino;
}

/* A name in a directory of the node for a file; false: it has none there. */
static bool find_name(const char *directory, const struct stat *file, char name[NAME_MAX + 1])
{
    DIR *entries = opendir(directory);
    struct dirent *entry;
    bool is_found = false;

    while (entries && !is_found && (entry = readdir(entries))) {
        is_found = entry->d_ino == file->st_ino && is_name_of(file, dirfd(entries), entry->d_name);
        snprintf(name, NAME_MAX + 1, "%s", entry->d_name);
    }
    if (entries)
        closedir(entries);
    return is_found;
}

/* Gives a file whose name was removed its other name, in `name`. The length. */
static ssize_t rename_removed(const char *link, char *name, size_t length, size_t size)
{
    static const char removed[] = " (deleted)";
    const char *root = getenv("WHERRY_CRIU_ROOT");
    char directory[2 * PATH_MAX], other[NAME_MAX + 1], *slash;
    size_t kept = length - (sizeof(removed) - 1);
    struct stat file;

    if (!root || length < sizeof(removed) || length >= PATH_MAX || memcmp(name + kept, removed, sizeof(removed) - 1) ||
        stat(link, &file) || !S_ISREG(file.st_mode) || !file.st_nlink)
        return (ssize_t)length;
    snprintf(directory, sizeof(directory), "%s%.*s", root, (int)length, name);
    if (is_name_of(&file, AT_FDCWD, directory))
        return (ssize_t)length; /* it is called so */
    slash = strrchr(directory, '/');
    slash[1] = 0;
    if (!find_name(directory, &file, other))
        return (ssize_t)length;
    kept = (size_t)(slash + 1 - directory) - strlen(root);
    if (kept + strlen(other) >= size)
        return (ssize_t)length;
    memcpy(name + kept, other, strlen(other));
    return (ssize_t)(kept + strlen(other));
}

EXPORTED ssize_t readlink(const char *path, char *name, size_t size)
{
    ssize_t length = syscall(SYS_readlink, path, name, size);

    if (length <= 0 || strncmp(path, "/proc/self/fd/", 14))
        return length;
    return rename_removed(path, name, (size_t)length, size);
}
