/* See wherry/key.h. */
#include "wherry/key.h"

#include <errno.h>
#include <unistd.h>

int key_read(int fd, uint8_t key[KEY_SIZE])
{
    uint8_t more;
    size_t have = 0;
    ssize_t got;

    while (have < KEY_SIZE && ((got = read(fd, key + have, KEY_SIZE - have)) > 0 || (got < 0 && errno == EINTR)))
        have += got > 0 ? (size_t)got : 0;
    got = have == KEY_SIZE ? read(fd, &more, 1) : -1;
    close(fd);
    return got ? -EINVAL : 0;
}
