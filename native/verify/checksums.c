/* See checksums.h. */
#include "checksums.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "criu_image.h"

/* A pages file, which only grows: the CRCs of the pages that it had when it was last looked at. */
struct growing {
    ino_t inode;
    size_t pages;
    uint32_t *crcs;
};

static struct growing *files;
static size_t files_count;
static uint8_t block[BLOCK];

static size_t smaller(uint64_t a, uint64_t b)
{
    return (size_t)(a < b ? a : b);
}

uint32_t checksum_add(uint32_t crc, uint64_t address, const uint8_t *bytes, size_t count)
{
    while (count) {
        size_t part = smaller(PAGE - address % PAGE, count);
        uint32_t of_page = crc32c(0, bytes, part);

        crc = crc32c(crc, (const uint8_t *)&of_page, sizeof(of_page));
        address += part, bytes += part, count -= part;
    }
    return crc;
}

static struct growing *find(ino_t inode)
{
    for (size_t i = 0; i < files_count; i++)
        if (files[i].inode == inode)
            return &files[i];
    return NULL;
}

static struct growing *found(ino_t inode)
{
    struct growing *file = find(inode), *more;

    if (file || !(more = realloc(files, (files_count + 1) * sizeof(*files))))
        return file;
    files = more;
    files[files_count] = (struct growing){.inode = inode};
    return &files[files_count++];
}

static int take_in(int file)
{
    struct growing *growing;
    struct stat status;
    uint32_t *more;
    size_t pages;

    if (fstat(file, &status))
        return -errno;
    pages = (size_t)status.st_size / PAGE;
    if (!(growing = found(status.st_ino)))
        return -ENOMEM;
    if (pages <= growing->pages)
        return 0;
    if (!(more = realloc(growing->crcs, pages * sizeof(*more))))
        return -ENOMEM;
    growing->crcs = more;
    while (growing->pages < pages) {
        size_t wanted = smaller(BLOCK, (pages - growing->pages) * PAGE);
        ssize_t got = pread(file, block, wanted, (off_t)(growing->pages * PAGE));

        if (got < (ssize_t)PAGE)
            return got < 0 ? -errno : -ENODATA;
        for (size_t at = 0; at + PAGE <= (size_t)got; at += PAGE)
            growing->crcs[growing->pages++] = crc32c(0, block + at, PAGE);
    }
    return 0;
}

int checksums_follow(int directory)
{
    int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), error = 0;
    DIR *list = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *entry;

    if (!list)
        return -errno;
    while (!error && (entry = readdir(list))) {
        int file;

        if (strncmp(entry->d_name, "pages-", 6))
            continue;
        file = openat(directory, entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        error = file < 0 ? -errno : take_in(file);
        if (file >= 0)
            close(file);
    }
    closedir(list);
    return error;
}

int checksum_of_run(int file, uint64_t offset, uint64_t count, uint32_t *crc)
{
    const struct growing *growing;
    struct stat status;

    if (fstat(file, &status))
        return -errno;
    if (!(growing = find(status.st_ino)))
        return -ENODATA;
    *crc = 0;
    while (count) {
        size_t page = offset / PAGE, part = smaller(PAGE - offset % PAGE, count);

        if (page >= growing->pages)
            return -ENODATA;
        if (part == PAGE) {
            *crc = crc32c(*crc, (const uint8_t *)&growing->crcs[page], sizeof(*crc));
        } else {
            if (pread(file, block, part, (off_t)offset) != (ssize_t)part)
                return -ENODATA;
            *crc = checksum_add(*crc, offset, block, part);
        }
        offset += part, count -= part;
    }
    return 0;
}
