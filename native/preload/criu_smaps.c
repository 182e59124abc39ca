#include "criu_smaps.h"
#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct mapping {
    unsigned long start, end;
};

/* The mappings of the latest process that have no file, by address. */
static struct anonymous {
    int pid, directory; /* the descriptor of its map_files; -1: not known yet */
    struct mapping *mappings;
    size_t count;
} anonymous;

static bool is_mapping(const char *line)
{
    return (*line >= '0' && *line <= '9') || (*line >= 'a' && *line <= 'f');
}

/* Whether the copy of smaps has the mappings of maps, and no other. */
static bool has_mappings(const char *copy, const char *maps)
{
    const char *next;

    for (; *copy; copy = next + 1) {
        next = strchr(copy, '\n');
        if (!next)
            return false;
        if (!is_mapping(copy))
            continue;
        if (strncmp(copy, maps, (size_t)(next + 1 - copy)))
            return false;
        maps += next + 1 - copy;
    }
    return !*maps;
}

/* Takes the mappings [vvar...] out of a text that has no [vdso]: CRIU refuses one without the other. */
static void remove_data_of_no_vdso(char *text)
{
    char *to = text, *from = text, *next;
    bool is_removed = false;

    if (strstr(text, "[vdso]") || !strstr(text, "[vvar"))
        return;
    for (; *from; from = next) {
        next = strchr(from, '\n');
        next = next ? next + 1 : from + strlen(from);
        if (is_mapping(from))
            is_removed = memmem(from, (size_t)(next - from), "[vvar", 5);
        if (is_removed)
            continue;
        memmove(to, from, (size_t)(next - from));
        to += next - from;
    }
    *to = 0;
}

/* A file with this text; -1: none. */
static int file_of(const char *text)
{
    int file = memfd_create("smaps", MFD_CLOEXEC);
    size_t size = strlen(text);

    if (file >= 0 && pwrite(file, text, size, 0) != (ssize_t)size) {
        close(file);
        return -1;
    }
    return file;
}

/* The copy of the smaps of a process; NULL: there is none, or not of its present mappings. */
static char *copied(int directory, const char *prefix)
{
    int pid = process_of(directory, "");
    char path[PATH_MAX], used[PATH_MAX + 8], *copy, *maps;
    bool is_its_own;

    snprintf(path, sizeof(path), "%s.%d", prefix, pid);
    copy = pid ? contents(AT_FDCWD, path) : NULL;
    maps = copy ? contents(directory, "maps") : NULL;
    snprintf(used, sizeof(used), "%s.used", path);
    is_its_own = maps && has_mappings(copy, maps) && !rename(path, used);
    free(maps);
    if (is_its_own)
        return copy;
    free(copy);
    return NULL;
}

/* Whether a line of smaps is a mapping that has no file. It is read in place: sscanf looks for the end of all the text first. */
static bool read_without_file(const char *line, struct mapping *one)
{
    char *at;

    one->start = strtoul(line, &at, 16);
    if (*at != '-')
        return false;
    one->end = strtoul(at + 1, &at, 16);
    if (*at != ' ' || !(at = strchr(at + 1, ' '))) /* behind the access */
        return false;
    strtoul(at, &at, 16); /* the offset */
    return !strncmp(at, " 00:00 0 ", 9);
}

/* Learns which mappings have no file. */
static void learn_mappings(int pid, const char *text)
{
    struct mapping one;
    size_t room = 0;

    free(anonymous.mappings);
    anonymous = (struct anonymous){.pid = pid, .directory = -1};
    for (const char *line = text; line && *line; line = (line = strchr(line, '\n')) ? line + 1 : NULL) {
        if (!is_mapping(line) || !read_without_file(line, &one))
            continue;
        if (anonymous.count == room) {
            struct mapping *more = realloc(anonymous.mappings, (room = 2 * room + 64) * sizeof(*more));

            if (!more)
                return;
            anonymous.mappings = more;
        }
        anonymous.mappings[anonymous.count++] = one;
    }
}

static int by_address(const void *one, const void *other)
{
    const struct mapping *a = one, *b = other;

    return (a->start > b->start) - (a->start < b->start);
}

/* Whether START-END in a process's map_files is a mapping without a file: of the latest process of `given_smaps`. */
static bool has_no_file(int directory, const char *path)
{
    struct mapping one, *found;
    char after;

    if (!anonymous.count || sscanf(path, "%lx-%lx%c", &one.start, &one.end, &after) != 2)
        return false;
    if (directory != anonymous.directory) {
        if (process_of(directory, "/map_files") != anonymous.pid)
            return false;
        anonymous.directory = directory;
    }
    found = bsearch(&one, anonymous.mappings, anonymous.count, sizeof(one), by_address);
    return found && found->end == one.end;
}

int given_smaps(int directory, const char *prefix)
{
    char *text = prefix ? copied(directory, prefix) : NULL;
    int file;

    if (!text && !(text = contents(directory, "smaps")))
        return -1;
    learn_mappings(process_of(directory, ""), text);
    remove_data_of_no_vdso(text);
    file = file_of(text);
    free(text);
    return file;
}

/* CRIU asks for each mapping whether it has a file. */
EXPORTED int fstatat(int directory, const char *path, struct stat *status, int flags)
{
    if (flags == AT_SYMLINK_NOFOLLOW && has_no_file(directory, path)) {
        errno = ENOENT;
        return -1;
    }
    return (int)syscall(SYS_newfstatat, directory, path, status, flags);
}

EXPORTED int fstatat64(int directory, const char *path, struct stat64 *status, int flags) __attribute__((alias("fstatat")));
