/* The destination's side; see main.c. */
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checksums.h"
#include "commands.h"
#include "image_pages.h"

#define LOOK_MS 2 /* between looks for new pages */

static uint8_t block[BLOCK];

int checksum_of_file(const char *path, uint64_t *size, uint32_t *crc)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t got;

    if (file < 0)
        return -errno;
    *crc = 0, *size = 0;
    while ((got = read(file, block, BLOCK)) > 0) {
        *crc = crc32c(*crc, block, (size_t)got);
        *size += (uint64_t)got;
    }
    close(file);
    return got < 0 ? -errno : 0;
}

static int say_pages(void *context, uint32_t pid, uint64_t address, int file, uint64_t offset, uint64_t count)
{
    uint32_t crc = 0;
    int error = checksum_of_run(file, offset, count, &crc);

    (void)context;
    if (!error)
        printf("p %u %" PRIx64 " %" PRIu64 " %08x%c", pid, address, count, crc, 0);
    return error;
}

/* Pages are summed by the processes that they belong to; statistics differ on both sides. */
static int is_left_out(const char *name)
{
    return !strncmp(name, "pages-", 6) || !strncmp(name, "pagemap-", 8) || !strncmp(name, "stats-", 6);
}

static int say_files(const char *top)
{
    char *const tops[] = {(char *)top, NULL};
    FTS *tree = fts_open(tops, FTS_PHYSICAL, NULL);
    FTSENT *entry;
    int error = 0;

    if (!tree)
        return -errno;
    while (!error && (errno = 0, entry = fts_read(tree))) {
        uint64_t size;
        uint32_t crc;

        if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR || entry->fts_info == FTS_NS)
            error = -entry->fts_errno;
        if (entry->fts_info != FTS_F || is_left_out(entry->fts_name))
            continue;
        error = checksum_of_file(entry->fts_accpath, &size, &crc);
        if (!error)
            printf("i %" PRIu64 " %08x %s%c", size, crc, entry->fts_path + strlen(top) + 1, 0);
    }
    if (!error && errno)
        error = -errno; /* there may be more files than it has named */
    fts_close(tree);
    return error;
}

/* Follows arriving pages until a line ends it; false: the move ended before. */
static bool follow(int directory, int *error)
{
    struct pollfd told = {.fd = STDIN_FILENO, .events = POLLIN};
    char byte;

    while (!*error && !poll(&told, 1, LOOK_MS))
        *error = checksums_follow(directory);
    return read(STDIN_FILENO, &byte, 1) == 1;
}

int digest_run(const char *images)
{
    int directory = open(images, O_RDONLY | O_DIRECTORY | O_CLOEXEC), error = directory < 0 ? -errno : 0;

    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    if (!follow(directory, &error))
        return SAME;
    if (!error)
        error = checksums_follow(directory);
    if (!error)
        error = pages_each(directory, say_pages, NULL);
    if (!error)
        error = say_files(images);
    if (!error && (printf(".%c", 0) < 0 || fflush(stdout)))
        error = -errno;
    if (error)
        fprintf(stderr, "wherry-verify: the images cannot be read: %s\n", strerror(-error));
    return error ? CANNOT_TELL : SAME;
}
