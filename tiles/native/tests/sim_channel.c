/* See sim_channel.h. */
#include "sim_channel.h"

#include <stdlib.h>
#include <string.h>

static uint32_t host_of(const struct channel *channel, uint32_t *to)
{
    for (uint32_t host = 0; host < HOSTS; host++) {
        const struct net *net = &world.boards[host].net;

        if (channel < net->channels || channel >= net->channels + HOST_MAX)
            continue;
        *to = host == 0 ? (uint32_t)(channel - net->channels) : 0;
        return host;
    }
    abort();
}

void channel_send_iov(struct channel *channel, enum frame_kind kind, uint32_t process, uint32_t host, const void *own,
                      size_t own_size, const struct iovec *iov, size_t iov_count)
{
    struct flying *frame = calloc(1, sizeof(*frame) + own_size);
    uint32_t to, from = host_of(channel, &to);

    frame->head = (struct frame_head){.kind = (uint16_t)kind, .process = (uint8_t)process, .host = (uint8_t)host};
    frame->own = own_size;
    if (own_size)
        memcpy(frame->payload, own, own_size);
    frame->iov = calloc(iov_count + 1, sizeof(*iov));
    if (iov_count)
        memcpy(frame->iov, iov, iov_count * sizeof(*iov));
    frame->iov_count = iov_count;
    if (world.last[from][to])
        world.last[from][to]->next = frame;
    else
        world.first[from][to] = frame;
    world.last[from][to] = frame;
}

void channel_send_parts(struct channel *channel, enum frame_kind kind, uint32_t process, uint32_t host, const void *one,
                        size_t one_size, const void *two, size_t two_size)
{
    uint8_t *both = malloc(one_size + two_size + 1);

    if (one_size)
        memcpy(both, one, one_size);
    if (two_size)
        memcpy(both + one_size, two, two_size);
    channel_send_iov(channel, kind, process, host, both, one_size + two_size, NULL, 0);
    free(both);
}

static void free_frame(struct flying *frame)
{
    free(frame->iov);
    free(frame);
}

void sim_deliver(uint32_t from, uint32_t to)
{
    struct flying *frame = world.first[from][to];
    size_t size = frame ? frame->own : 0;
    uint8_t *payload;

    if (!frame)
        return;
    world.first[from][to] = frame->next;
    if (!frame->next)
        world.last[from][to] = NULL;
    for (size_t i = 0; i < frame->iov_count; i++)
        size += frame->iov[i].iov_len;
    payload = malloc(size + 1);
    memcpy(payload, frame->payload, frame->own);
    size = frame->own;
    for (size_t i = 0; i < frame->iov_count; size += frame->iov[i++].iov_len)
        memcpy(payload + size, frame->iov[i].iov_base, frame->iov[i].iov_len);
    frame->head.size = (uint32_t)size;
    if (!world.dead[to])
        net_handle(&world.boards[to].net, from, &frame->head, payload);
    free(payload);
    free_frame(frame);
}

void sim_drop_all(uint32_t from, uint32_t to)
{
    while (world.first[from][to]) {
        struct flying *frame = world.first[from][to];

        world.first[from][to] = frame->next;
        free_frame(frame);
    }
    world.last[from][to] = NULL;
}
