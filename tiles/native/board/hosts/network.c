/* See network.h. */
#include "network.h"

#include <string.h>

uint32_t net_host_of_tile(const struct net *net, uint32_t tile)
{
    uint32_t host = 0;

    for (uint32_t end = net->tiles[0]; tile >= end && host + 1 < net->hosts; )
        end += net->tiles[++host];
    return host;
}

bool net_is_here(const struct net *net, uint32_t process)
{
    struct place place = shared_place(net->shared, process);

    return place.state == PLACE_RUNNING && net_host_of_tile(net, place.tile) == net->host;
}

/* The leader ends everything. */
static void on_down(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    struct net *net = context;

    (void)from, (void)head, (void)payload;
    net->stopping = true;
}

void net_init(struct net *net, struct shared_memory *shared)
{
    net->shared = shared;
    net->listen_fd = -1;
    net->hosts = 1;
    net->tiles[0] = shared->tile_count;
    net_on_frame(net, FRAME_DOWN, on_down, net);
}

void net_on_frame(struct net *net, enum frame_kind kind, frame_handler *handle, void *context)
{
    net->handlers[kind].handle = handle;
    net->handlers[kind].context = context;
}

void net_on_host_lost(struct net *net, host_lost_handler *handle, void *context)
{
    net->host_lost = handle;
    net->host_lost_context = context;
}

/* Kinds that a follower may send to the leader; only the leader sends the others. */
static bool is_for_leader(uint32_t kind)
{
    static const uint32_t kinds = 1u << FRAME_PARCEL | 1u << FRAME_DELIVERED | 1u << FRAME_ENDED | 1u << FRAME_STATE |
                                  1u << FRAME_READY | 1u << FRAME_REFUSED | 1u << FRAME_MOVED | 1u << FRAME_WISH |
                                  1u << FRAME_REPORT | 1u << FRAME_OFFER | 1u << FRAME_WANT | 1u << FRAME_PAGES |
                                  1u << FRAME_PIECE | 1u << FRAME_RUNS;

    return kinds >> kind & 1;
}

void net_handle(struct net *net, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    if (net->host == 0 && from != 0 && !is_for_leader(head->kind))
        return;
    if (net->handlers[head->kind].handle)
        net->handlers[head->kind].handle(net->handlers[head->kind].context, from, head, payload);
}

struct channel *net_channel(struct net *net, uint32_t host)
{
    return &net->channels[net->host == 0 ? host : 0];
}

void net_send(struct net *net, uint32_t host, enum frame_kind kind, uint32_t process, const void *payload, size_t size)
{
    struct frame_head head = {.size = (uint32_t)size, .kind = (uint16_t)kind, .process = (uint8_t)process};

    if (host == net->host)
        net_handle(net, host, &head, payload);
    else
        channel_send(net_channel(net, host), kind, process, host, payload, size);
}

struct order net_read_order(const struct frame_head *head, const uint8_t *payload)
{
    struct order order = {0};

    if (head->size == sizeof(order))
        memcpy(&order, payload, sizeof(order));
    order.why[REASON_SIZE - 1] = 0;
    return order;
}
