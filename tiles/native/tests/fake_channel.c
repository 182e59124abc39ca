/* Links of a test that has no connections: frames go to the test's own `channel_send_iov`. */
#include <string.h>

#include "../board/hosts/channel.h"

void channel_send(struct channel *channel, enum frame_kind kind, uint32_t process, uint32_t host, const void *payload,
                  size_t size)
{
    channel_send_iov(channel, kind, process, host, payload, size, NULL, 0);
}

int channel_start(struct channel *channel)
{
    memset(channel, 0, sizeof(*channel));
    return 0;
}

void channel_connect(struct channel *channel, int fd, uint64_t received)
{
    (void)channel, (void)fd, (void)received;
}

void channel_disconnect(struct channel *channel)
{
    (void)channel;
}

bool channel_wants_to_write(const struct channel *channel)
{
    (void)channel;
    return false;
}

void channel_write(struct channel *channel)
{
    (void)channel;
}

void channel_read(struct channel *channel, channel_handler *handler, void *context)
{
    (void)channel, (void)handler, (void)context;
}
