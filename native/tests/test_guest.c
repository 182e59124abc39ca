/* A small file of a guest is read whole or not at all: a list of modules that ends in its midst would pass for one. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../guest/util.h"
#include "check.h"

/* The length that is read of a file of `size` bytes, or negative errno. */
static long read_file_of(size_t size)
{
    int fd = memfd_create("file", 0);
    char path[32], *bytes = malloc(size), *text;
    long length;

    CHECK(fd >= 0 && bytes);
    memset(bytes, 'x', size);
    CHECK(write(fd, bytes, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    text = guest_read(path);
    length = text ? (long)strlen(text) : -errno;
    free(text);
    free(bytes);
    close(fd);
    return length;
}

int main(void)
{
    CHECK(read_file_of(10) == 10);
    CHECK(read_file_of(GUEST_TEXT_MAX - 2) == GUEST_TEXT_MAX - 2);
    CHECK(read_file_of(GUEST_TEXT_MAX) == -EFBIG);
    CHECK(guest_read("/not/there") == NULL && errno == ENOENT);
    return 0;
}
