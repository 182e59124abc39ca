/* Links of a test that has no connections: what is sent goes to the test's own `link_send_iov`. */
#include <string.h>

#include "../board/link.h"

void link_send(struct link *link, enum frame_kind kind, uint32_t process, uint32_t host, const void *payload,
               size_t size)
{
    link_send_iov(link, kind, process, host, payload, size, NULL, 0);
}

int link_start(struct link *link)
{
    memset(link, 0, sizeof(*link));
    return 0;
}

void link_connect(struct link *link, int fd, uint64_t received)
{
    (void)link, (void)fd, (void)received;
}

void link_disconnect(struct link *link)
{
    (void)link;
}

bool link_wants_to_write(const struct link *link)
{
    (void)link;
    return false;
}

void link_write(struct link *link)
{
    (void)link;
}

void link_read(struct link *link, link_handler *handler, void *context)
{
    (void)link, (void)handler, (void)context;
}
