#include "criu_smaps.h"
#include "proc.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

/* The copy of the smaps of a process; NULL: there is none, or not of what the process has now. */
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

int given_smaps(int directory, const char *prefix)
{
    char *text = prefix ? copied(directory, prefix) : NULL;
    int file;

    if (!text && !(text = contents(directory, "smaps")))
        return -1;
    remove_data_of_no_vdso(text);
    file = file_of(text);
    free(text);
    return file;
}
