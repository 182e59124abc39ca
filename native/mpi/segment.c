#include "segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PATH = 512, TRIES = 3, MODE = 0600, DIRECTORY_MODE = 0700 };

_Static_assert(sizeof(struct segment_head) <= SEGMENT_DATA, "the message is behind it");
_Static_assert(sizeof(struct descriptor) == 64, "as long as declared");

/* By the gate; a name that is too long is none. */
static const char *name_of(char path[PATH], const struct segment_places *at, int receiver, int sender, unsigned slot)
{
    int length = snprintf(path, PATH, "%s.host/%d/%d.%u", at->own, receiver, sender, slot);

    return length < PATH ? path : "";
}

static const char *directory_of(char path[PATH], const struct segment_places *at, int rank)
{
    return snprintf(path, PATH, "%s/%d", at->host, rank) < PATH ? path : "";
}

static const char *gate_of(char path[PATH], const struct segment_places *at)
{
    return snprintf(path, PATH, "%s.host", at->own) < PATH ? path : "";
}

/* The mover of the node recognises by it that it has this rank. */
static const char *mark_of(char path[PATH], const struct segment_places *at, int rank)
{
    return snprintf(path, PATH, "%s.%d", at->own, rank) < PATH ? path : "";
}

/* A message of this rank that a move took along. */
static const char *kept_of(char path[PATH], const struct segment_places *at, int receiver,
                           const struct descriptor *descriptor)
{
    int length = snprintf(path, PATH, "%s.%d.%u.%llu", at->own, receiver, descriptor->sender,
                          (unsigned long long)descriptor->serial);

    return length < PATH ? path : "";
}

/* Head and message at once, as far as it goes. */
static ssize_t write_both(int fd, const struct segment_head *head, const void *message)
{
    static const char between[SEGMENT_DATA - sizeof *head];
    const struct iovec parts[] = {
        {(void *)(uintptr_t)head, sizeof *head},
        {(void *)(uintptr_t)between, sizeof between},
        {(void *)(uintptr_t)message, head->bytes},
    };

    return pwritev(fd, parts, sizeof parts / sizeof *parts, 0);
}

static ssize_t read_both(int fd, char head[SEGMENT_DATA], void *to, uint64_t bytes)
{
    const struct iovec parts[] = {{head, SEGMENT_DATA}, {to, bytes}};

    return preadv(fd, parts, sizeof parts / sizeof *parts, 0);
}

/* The file is the one of its path: a directory that is closed is renamed, and later files are not looked for. */
static bool is_there(int fd, const char *path)
{
    struct stat open, named;

    return !fstat(fd, &open) && !stat(path, &named) && open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

/* A descriptor for the slot, whose last message the receiver has taken if its file shows so; else that one may be under
 * way still, from a file of another host, and stays for ever. */
static struct descriptor *descriptor_for(struct outgoing *out, unsigned slot, uint64_t taken)
{
    struct descriptor *told = out->told[slot];

    if (told && told->serial == taken)
        return told;
    return out->told[slot] = calloc(1, sizeof *told);
}

/* A message that is not whole, as there is no more memory, or that nobody would find, leaves the slot free. */
static bool write_message(int fd, const char *path, struct segment_head *head, const void *message)
{
    head->messages++;
    if (write_both(fd, head, message) == (ssize_t)(SEGMENT_DATA + head->bytes) && is_there(fd, path))
        return true;
    head->serial = 0;
    head->messages--;
    if (pwrite(fd, head, sizeof *head, 0) != (ssize_t)sizeof *head)
        unlink(path);
    return false;
}

struct descriptor *segment_put(const struct segment_places *at, struct outgoing *out, int receiver, int sender,
                               const void *message, uint64_t bytes)
{
    static uint64_t serial;
    struct descriptor *descriptor;
    struct segment_head head;
    char name[PATH];

    for (unsigned try = 0; try < TRIES; try++) {
        unsigned slot = (out->newest + try) % SEGMENT_SLOTS; /* the newest is free most often, and caches have it */
        const char *path = name_of(name, at, receiver, sender, slot);
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, MODE);

        if (fd < 0)
            return NULL;
        memset(&head, 0, sizeof head);
        if (pread(fd, &head, sizeof head, 0) < 0 || head.serial) {
            close(fd);
            continue;
        }
        descriptor = descriptor_for(out, slot, head.taken);
        head.serial = ++serial;
        head.bytes = bytes;
        if (!descriptor || !write_message(fd, path, &head, message))
            descriptor = NULL;
        close(fd);
        if (!descriptor)
            return NULL;
        out->newest = slot;
        descriptor->serial = head.serial;
        descriptor->bytes = bytes;
        descriptor->sender = (uint32_t)sender;
        descriptor->slot = slot;
        return descriptor;
    }
    return NULL;
}

/* ESTALE: the message is not there any more. The bytes read in its place are written over. */
static int take_here(int fd, const struct descriptor *descriptor, void *to)
{
    char begin[SEGMENT_DATA];
    struct segment_head head;
    ssize_t done = read_both(fd, begin, to, descriptor->bytes);

    if (done < 0)
        return errno;
    memcpy(&head, begin, sizeof head);
    if (done < SEGMENT_DATA || head.serial != descriptor->serial || head.bytes != descriptor->bytes)
        return ESTALE;
    if ((uint64_t)done != SEGMENT_DATA + descriptor->bytes)
        return EBADMSG;
    head.taken = head.serial;
    head.serial = 0;
    return pwrite(fd, &head, sizeof head, 0) == (ssize_t)sizeof head ? 0 : EIO;
}

static bool was_unlinked(int fd)
{
    struct stat open;

    return !fstat(fd, &open) && !open.st_nlink;
}

int segment_take(const struct segment_places *at, int receiver, const struct descriptor *descriptor, void *to,
                 bool *moved)
{
    char name[PATH];
    int error = ESTALE, fd;

    *moved = false;
    if (descriptor->slot >= SEGMENT_SLOTS)
        return EBADMSG;
    fd = open(name_of(name, at, receiver, (int)descriptor->sender, descriptor->slot), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0) {
        error = take_here(fd, descriptor, to);
        *moved = !error && was_unlinked(fd);
        close(fd);
    }
    if (*moved) /* meanwhile: a copy is among our own files */
        unlink(kept_of(name, at, receiver, descriptor));
    if (error != ESTALE)
        return error;
    *moved = true;
    fd = open(kept_of(name, at, receiver, descriptor), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno;
    error = pread(fd, to, descriptor->bytes, SEGMENT_DATA) == (ssize_t)descriptor->bytes ? 0 : EBADMSG;
    close(fd);
    if (!error)
        unlink(name);
    return error;
}

bool segment_is_here(const struct segment_places *at, int rank, bool receives)
{
    char path[PATH];

    return !access(gate_of(path, at), F_OK) && (!receives || !access(directory_of(path, at, rank), F_OK));
}

bool segment_return(const struct segment_places *at, int rank, bool receives)
{
    char path[PATH];

    mkdir(at->host, DIRECTORY_MODE);
    if (receives)
        mkdir(directory_of(path, at, rank), DIRECTORY_MODE);
    return !symlink(at->host, gate_of(path, at)) || errno == EEXIST; /* another rank of the node may have made it */
}

bool segment_begin(const struct segment_places *at, int rank, bool receives)
{
    char mark[PATH];
    int fd;

    if (mkdir(at->host, DIRECTORY_MODE) && errno != EEXIST)
        return false;
    fd = open(mark_of(mark, at, rank), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, MODE);
    if (fd < 0)
        return false;
    close(fd);
    return segment_return(at, rank, receives);
}

/* Files whose names begin with `begin`, or all. */
static void unlink_all(const char *directory, const char *begin)
{
    DIR *listed = opendir(directory);
    const struct dirent *entry;

    while (listed && (entry = readdir(listed)))
        if (!strncmp(entry->d_name, begin, strlen(begin)))
            unlinkat(dirfd(listed), entry->d_name, 0);
    if (listed)
        closedir(listed);
}

void segment_remove(const struct segment_places *at, int rank)
{
    char path[PATH], begin[PATH], *slash;

    unlink_all(directory_of(path, at, rank), "");
    rmdir(path);
    mark_of(path, at, rank);
    slash = strrchr(path, '/');
    if (slash) {
        snprintf(begin, sizeof begin, "%s.", slash + 1);
        *slash = 0;
        unlink_all(path, begin);
        unlink(mark_of(path, at, rank));
    }
    if (!rmdir(at->host) || errno == ENOENT) /* it was the last one of this host */
        unlink(gate_of(path, at));
}
