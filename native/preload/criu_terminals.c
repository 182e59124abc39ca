/* What is in a pseudo-terminal that nobody has read; see criu.c. */
#include "criu_terminals.h"

#include "proc.h"

#include <asm/ioctls.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum {
    OF_CRIU = 16384 - 1, /* bytes of a terminal that CRIU carries: it is content with less than its buffer takes */
    MOST = 1 << 16,      /* bytes of a terminal; the kernel has room for some 20 KiB */
    PIECE = 256,         /* larger ones the kernel keeps until all of one is read */
    PAUSE_NS = 100000,
    PAUSES = 2000,
};

/* What the reader of one end has not read. */
struct unread {
    unsigned index;
    bool is_of_master;
    size_t count, given; /* given: to CRIU */
    unsigned char bytes[MOST];
    struct unread *next;
};

static struct unread *all;
static int images = -1; /* of a dump */

static bool is_terminal(int fd)
{
    int kept = errno;
    struct termios settings;
    bool is = tcgetattr(fd, &settings) == 0;

    errno = kept;
    return is;
}

/* Which pseudo-terminal a descriptor is of; false: another kind. */
static bool identify(int fd, unsigned *index, bool *is_master)
{
    struct stat status;

    if (syscall(SYS_ioctl, fd, TIOCGPTN, index) == 0)
        return *is_master = true;
    *is_master = false;
    if (fstat(fd, &status) < 0 || major(status.st_rdev) < 136 || major(status.st_rdev) > 143)
        return false;
    *index = (major(status.st_rdev) - 136) * 256 + minor(status.st_rdev);
    return true;
}

static struct unread *find(unsigned index, bool is_of_master)
{
    struct unread *one = all;

    while (one && (one->index != index || one->is_of_master != is_of_master))
        one = one->next;
    return one;
}

static struct unread *add(unsigned index, bool is_of_master)
{
    struct unread *one = calloc(1, sizeof *one);

    if (one)
        *one = (struct unread){.index = index, .is_of_master = is_of_master, .next = all}, all = one;
    return one;
}

/* Has what CRIU does not carry go with its images. */
static bool note(const struct unread *one)
{
    int file = (int)syscall(SYS_openat, images, TERMINALS, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600);
    bool is_noted = file >= 0 && dprintf(file, "%u %d ", one->index, one->is_of_master) > 0;

    for (size_t i = OF_CRIU; i < one->count && is_noted; i++)
        is_noted = dprintf(file, "%02x", one->bytes[i]) == 2;
    is_noted = is_noted && dprintf(file, "\n") == 1;
    if (file >= 0)
        close(file);
    return is_noted;
}

static int hexadecimal(char digit)
{
    return digit >= '0' && digit <= '9' ? digit - '0' : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* A line of the note; where the next one begins. NULL: it is damaged. */
static const char *learn_one(const char *line)
{
    int end, begin;
    unsigned index;
    struct unread *one;

    if (sscanf(line, "%u %d %n", &index, &end, &begin) != 2 || !(one = add(index, end)))
        return NULL;
    one->count = OF_CRIU;
    for (line += begin; hexadecimal(line[0]) >= 0 && hexadecimal(line[1]) >= 0 && one->count < MOST; line += 2)
        one->bytes[one->count++] = (unsigned char)(hexadecimal(line[0]) << 4 | hexadecimal(line[1]));
    return *line == '\n' ? line + 1 : NULL;
}

void learn_terminals(int directory)
{
    char *text = contents(directory, TERMINALS);

    for (const char *line = text; line && *line;)
        if (!(line = learn_one(line))) {
            fprintf(stderr, "wherry: %s is damaged\n", TERMINALS);
            _exit(1);
        }
    free(text);
}

void note_terminals_in(int directory)
{
    images = directory;
}

/* All of it, whatever CRIU has room for. Negative: as read(2) says. */
static ssize_t take(int fd, struct unread *one)
{
    while (one->count < MOST) {
        ssize_t got = syscall(SYS_read, fd, one->bytes + one->count, MOST - one->count);

        if (got <= 0)
            return one->count ? (ssize_t)one->count : got;
        one->count += (size_t)got;
    }
    return (ssize_t)one->count;
}

EXPORTED ssize_t read(int fd, void *bytes, size_t count)
{
    unsigned index;
    bool is_master;
    struct unread *one;
    ssize_t taken;
    size_t left;

    if (!count || images < 0 || !is_terminal(fd) || !identify(fd, &index, &is_master))
        return syscall(SYS_read, fd, bytes, count);
    if (!(one = find(index, is_master))) {
        if (!(one = add(index, is_master)))
            return -1;
        if ((taken = take(fd, one)) <= 0)
            return taken;
        if (one->count > OF_CRIU && !note(one))
            return fprintf(stderr, "wherry: %s cannot be written\n", TERMINALS), errno = EIO, -1;
    }
    left = (one->count < OF_CRIU ? one->count : OF_CRIU) - one->given;
    count = left < count ? left : count;
    if (!count)
        return errno = EAGAIN, -1;
    memcpy(bytes, one->bytes + one->given, count);
    one->given += count;
    return (ssize_t)count;
}

/* Writes in pieces, each when the kernel's worker has moved on what was there. How many bytes there was room for. */
static size_t fill(int fd, const unsigned char *bytes, size_t count)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    size_t done = 0;

    for (int pauses = 0; done < count && pauses < PAUSES;) {
        size_t piece = count - done < PIECE ? count - done : PIECE;
        ssize_t got = syscall(SYS_write, fd, bytes + done, piece);

        if (got > 0) {
            done += (size_t)got;
            pauses = 0;
            continue;
        }
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            break;
        nanosleep(&pause, NULL);
        pauses++;
    }
    return done;
}

EXPORTED ssize_t write(int fd, const void *bytes, size_t count)
{
    const struct unread *more = NULL;
    size_t done, beyond;
    unsigned index;
    bool is_master;
    int flags;

    if (!count || count > OF_CRIU || !is_terminal(fd) || (flags = fcntl(fd, F_GETFL)) < 0)
        return syscall(SYS_write, fd, bytes, count);
    if (identify(fd, &index, &is_master))
        more = find(index, !is_master);
    beyond = more && more->count > OF_CRIU ? more->count - OF_CRIU : 0;
    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    done = fill(fd, bytes, count);
    if (done == count && beyond)
        done += fill(fd, more->bytes + OF_CRIU, beyond);
    fcntl(fd, F_SETFL, flags);
    if (done == count + beyond)
        return (ssize_t)count;
    fprintf(stderr, "wherry: a terminal took %zu of the %zu bytes that were in it\n", done, count + beyond);
    if (does("restore"))
        _exit(1); /* CRIU would go on without the rest */
    return (ssize_t)(done < count ? done : count);
}
