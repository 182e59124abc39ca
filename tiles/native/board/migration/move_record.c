/* See move_record.h. */
#include "move_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool record_is_outgoing(const struct move_proxy *proxy, const struct move *move)
{
    return move->serial && shared_is_here(proxy->shared, move->from) && !shared_is_here(proxy->shared, move->to);
}

bool record_is_incoming(const struct move_proxy *proxy, const struct move *move)
{
    return move->serial && shared_is_here(proxy->shared, move->to) && !shared_is_here(proxy->shared, move->from);
}

bool record_is_unused(const struct move *move)
{
    uint32_t step = atomic_load(&move->step);

    return step == MOVE_NONE || step == MOVE_ELSEWHERE;
}

bool record_is_mode(uint32_t mode)
{
    return mode < MODE_COUNT && mode != MODE_HANDOFF;
}

struct move *record_find(struct move_proxy *proxy, uint32_t process, uint32_t serial, bool incoming)
{
    for (uint32_t to = 0; to < proxy->shared->tile_count; to++) {
        struct move *move = &proxy->shared->moves[to];
        uint32_t step = atomic_load(&move->step);

        if (step != MOVE_NONE && step != MOVE_ELSEWHERE && move->process == process && move->serial == serial &&
            (incoming ? record_is_incoming(proxy, move) : record_is_outgoing(proxy, move)))
            return move;
    }
    return NULL;
}

struct peer_view *record_peer_view(struct move_proxy *proxy, const struct move *move)
{
    return &proxy->peer_views[move->to];
}

void record_change_step(struct move_proxy *proxy, struct move *move, uint32_t from, uint32_t to)
{
    atomic_compare_exchange_strong(&move->step, &from, to);
    shared_ring(proxy->shared, shared_is_here(proxy->shared, move->from) ? move->from : move->to);
}

void record_abort(struct move_proxy *proxy, struct move *move, const char *why)
{
    uint32_t step = atomic_load(&move->step);

    if (step < MOVE_ASKED || step > MOVE_FROZEN)
        return;
    snprintf(move->why, sizeof(move->why), "%s", why);
    record_change_step(proxy, move, step, MOVE_ABORTED);
}

void record_refuse(struct move_proxy *proxy, uint32_t process, uint32_t serial, uint32_t to, const char *why)
{
    struct order order = {.serial = serial, .to = to};

    snprintf(order.why, sizeof(order.why), "%s", why);
    net_send(proxy->net, 0, FRAME_REFUSED, process, &order, sizeof(order));
}

void record_begin(struct move_proxy *proxy, struct move *move, uint32_t process, uint32_t serial, uint32_t from,
                  uint32_t to, uint32_t mode)
{
    shared_clear_move(move);
    move->process = process;
    move->serial = serial;
    move->from = from;
    move->to = to;
    move->mode = mode;
    move->asked = shared_now();
    *record_peer_view(proxy, move) = (struct peer_view){.since = move->asked};
}

void record_touch_endpoints(const struct move_proxy *proxy)
{
    const volatile struct endpoint *endpoints = proxy->shared->endpoints;

    for (uint32_t process = 0; process < PROCESS_MAX; process++) {
        for (uint32_t port = 0; port < PORT_MAX; port++)
            (void)endpoints[process].ports[port].count;
        for (uint32_t portal = 0; portal < PORTAL_MAX; portal++)
            (void)endpoints[process].portals[portal].from;
        (void)endpoints[process].turn;
    }
}

void record_set_incoming(struct move_proxy *proxy, uint32_t process, struct incoming_move *incoming)
{
    free(proxy->incoming[process]);
    proxy->incoming[process] = incoming;
    router_mark(proxy->router, process, TRANSIT_EXPECTED, incoming);
    router_mark(proxy->router, process, TRANSIT_LOADED, incoming && incoming->has_state);
}

void record_set_snapshot(struct move_proxy *proxy, uint32_t process, struct snapshot *snapshot)
{
    free(proxy->snapshots[process]);
    proxy->snapshots[process] = snapshot;
    router_mark(proxy->router, process, TRANSIT_LEAVING, snapshot);
}
