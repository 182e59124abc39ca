#include "proc.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

char *contents(int directory, const char *path)
{
    int file = (int)syscall(SYS_openat, directory, path, O_RDONLY | O_CLOEXEC);
    size_t size = 0, room = 0;
    char *text = NULL, *more;
    ssize_t got = 0;

    while (file >= 0) {
        if (size + 1 >= room) {
            more = realloc(text, room += 1 << 16);
            if (!more)
                break;
            text = more;
        }
        got = syscall(SYS_read, file, text + size, room - size - 1);
        if (got <= 0)
            break;
        size += (size_t)got;
    }
    if (file >= 0)
        close(file);
    if (!text || got) { /* the end was not reached */
        free(text);
        return NULL;
    }
    text[size] = 0;
    return text;
}

int process_of(int descriptor, const char *behind)
{
    char link[64], path[PATH_MAX], *end;
    ssize_t length;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
    length = readlinkat(AT_FDCWD, link, path, sizeof(path) - 1);
    if (length < (ssize_t)strlen(behind))
        return 0;
    path[length] = 0;
    end = path + length - strlen(behind);
    if (strcmp(end, behind))
        return 0;
    *end = 0;
    end = strrchr(path, '/');
    return end ? atoi(end + 1) : 0;
}

bool does(const char *act)
{
    const char *doing = getenv("WHERRY_CRIU_ACT");

    return doing && !strcmp(doing, act);
}
