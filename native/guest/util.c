/* See util.h. */
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/reboot.h>
#include <unistd.h>

#include "wherry/process.h"

_Noreturn void guest_fail(const char *what, const char *object, int error)
{
    fprintf(stderr, "wherry-guest: cannot %s %s: %s\n", what, object, strerror(error));
    sync();
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}

char *guest_read(const char *path)
{
    char *text = malloc(GUEST_TEXT_MAX);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t count = -1;

    if (fd < 0 || !text)
        goto out;
    while ((count = read(fd, text + length, GUEST_TEXT_MAX - 1 - length)) > 0)
        length += (size_t)count;
    text[length] = 0;
    if (length == GUEST_TEXT_MAX - 1) {
        errno = EFBIG; /* a part of a list of modules would pass for the whole */
        count = -1;
    }
out:
    if (fd >= 0)
        close(fd);
    if (count == 0)
        return text;
    free(text);
    return NULL;
}

int guest_write(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int error;

    if (fd < 0)
        return -errno;
    error = process_write_all(fd, text, strlen(text));
    close(fd);
    return error;
}
