/* See pins.h. */
#include "pins.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Whether `look` is true for any entry of the directory. */
static bool any(int pid, const char *name, bool (*look)(int directory, const char *entry))
{
    char path[64];
    struct dirent *entry;
    bool found = false;
    DIR *list;

    snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
    if (!(list = opendir(path)))
        return false; /* it has ended */
    while (!found && (entry = readdir(list)))
        found = entry->d_name[0] != '.' && look(dirfd(list), entry->d_name);
    closedir(list);
    return found;
}

static bool read_text(int directory, const char *name, char *text, size_t size)
{
    int file = openat(directory, name, O_RDONLY | O_CLOEXEC);
    ssize_t got;

    if (file < 0)
        return false;
    got = read(file, text, size - 1);
    close(file);
    text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

/* A pipe has the flag, too (packet mode). */
static bool is_direct_file(int directory, const char *entry)
{
    char target[2], path[300], text[256], *flags;

    if (readlinkat(directory, entry, target, sizeof(target)) <= 0 || target[0] != '/')
        return false;
    snprintf(path, sizeof(path), "../fdinfo/%s", entry);
    return read_text(directory, path, text, sizeof(text)) && (flags = strstr(text, "flags:")) &&
           strtoul(flags + strlen("flags:"), NULL, 8) & O_DIRECT;
}

bool pins_may_be(int pid)
{
    return any(pid, "fd", is_direct_file);
}

static bool is_writing_to_another(int directory, const char *entry)
{
    char path[300], text[256];

    snprintf(path, sizeof(path), "%s/syscall", entry);
    return read_text(directory, path, text, sizeof(text)) && atoi(text) == SYS_process_vm_writev;
}

bool pins_others(int pid)
{
    return any(pid, "task", is_writing_to_another);
}
