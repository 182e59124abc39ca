/* See processes.h. */
#include "processes.h"

#include <stdio.h>
#include <string.h>

void processes_describe(const struct net *net, uint32_t process, struct process_info *news)
{
    const struct location *location = &net->shared->locations[process];
    struct place place = shared_place(net->shared, process);

    memset(news, 0, sizeof(*news));
    news->state = place.state;
    news->tile = place.tile;
    news->status = (uint32_t)location->status;
    news->moves = atomic_load(&location->moves);
    news->rank = location->rank;
    news->ranks = location->ranks;
    memcpy(news->members, location->members, sizeof(news->members));
    memcpy(news->why, location->why, sizeof(news->why));
    memcpy(news->program, location->program, sizeof(news->program));
}

void processes_learn(struct location *location, const struct process_info *news)
{
    location->status = (int32_t)news->status;
    location->rank = news->rank % TILE_MAX;
    location->ranks = news->ranks <= TILE_MAX ? news->ranks : 1;
    for (int rank = 0; rank < TILE_MAX; rank++)
        location->members[rank] = news->members[rank] % PROCESS_MAX;
    memcpy(location->why, news->why, REASON_SIZE - 1);
    memcpy(location->program, news->program, NAME_SIZE - 1);
    atomic_store(&location->moves, news->moves);
}

void processes_end(struct net *net, uint32_t process, int status, const char *why)
{
    struct location *location = &net->shared->locations[process];
    struct order order = {.mode = (uint32_t)status};

    if (shared_place(net->shared, process).state != PLACE_RUNNING || atomic_load(&location->end))
        return;
    if (!net_is_here(net, process)) {
        snprintf(order.why, sizeof(order.why), "%s", why);
        if (net->host == 0) /* its owner ends it; if it moves meanwhile, its new one */
            net_send(net, net_host_of_tile(net, shared_place(net->shared, process).tile), FRAME_END, process,
                     &order, sizeof(order));
        return;
    }
    snprintf(location->why, REASON_SIZE, "%s", why);
    atomic_store(&location->end, 1 + (uint32_t)(status & 0xff));
    shared_ring_process(net->shared, process);
}

static void on_end(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    struct order order = net_read_order(head, payload);

    (void)from;
    if (head->size == sizeof(order))
        processes_end(context, head->process, (int)order.mode, order.why);
}

void processes_init(struct net *net)
{
    net_on_frame(net, FRAME_END, on_end, net);
}
