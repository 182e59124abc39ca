/* See record.h. */
#include "record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool record_is_departure(const struct mirror *mirror, const struct move *move)
{
    return move->serial && window_is_here(mirror->window, move->from) && !window_is_here(mirror->window, move->to);
}

bool record_is_arrival(const struct mirror *mirror, const struct move *move)
{
    return move->serial && window_is_here(mirror->window, move->to) && !window_is_here(mirror->window, move->from);
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

struct move *record_find(struct mirror *mirror, uint32_t process, uint32_t serial, bool arrival)
{
    for (uint32_t to = 0; to < mirror->window->tile_count; to++) {
        struct move *move = &mirror->window->moves[to];
        uint32_t step = atomic_load(&move->step);

        if (step != MOVE_NONE && step != MOVE_ELSEWHERE && move->process == process && move->serial == serial &&
            (arrival ? record_is_arrival(mirror, move) : record_is_departure(mirror, move)))
            return move;
    }
    return NULL;
}

struct mirrored *record_mirrored(struct mirror *mirror, const struct move *move)
{
    return &mirror->mirrors[move->to];
}

void record_change_step(struct mirror *mirror, struct move *move, uint32_t from, uint32_t to)
{
    atomic_compare_exchange_strong(&move->step, &from, to);
    window_ring(mirror->window, window_is_here(mirror->window, move->from) ? move->from : move->to);
}

void record_abort(struct mirror *mirror, struct move *move, const char *why)
{
    uint32_t step = atomic_load(&move->step);

    if (step < MOVE_ASKED || step > MOVE_FROZEN)
        return;
    snprintf(move->why, sizeof(move->why), "%s", why);
    record_change_step(mirror, move, step, MOVE_ABORTED);
}

void record_refuse(struct mirror *mirror, uint32_t process, uint32_t serial, uint32_t to, const char *why)
{
    struct order order = {.serial = serial, .to = to};

    snprintf(order.why, sizeof(order.why), "%s", why);
    net_send(mirror->net, 0, FRAME_REFUSED, process, &order, sizeof(order));
}

void record_begin(struct mirror *mirror, struct move *move, uint32_t process, uint32_t serial, uint32_t from,
                  uint32_t to, uint32_t mode)
{
    window_clear_move(move);
    move->process = process;
    move->serial = serial;
    move->from = from;
    move->to = to;
    move->mode = mode;
    move->asked = window_now();
    *record_mirrored(mirror, move) = (struct mirrored){.since = move->asked};
}

void record_touch_endpoints(const struct mirror *mirror)
{
    const volatile struct endpoint *endpoints = mirror->window->endpoints;

    for (uint32_t process = 0; process < PROCESS_MAX; process++) {
        for (uint32_t port = 0; port < PORT_MAX; port++)
            (void)endpoints[process].ports[port].count;
        for (uint32_t portal = 0; portal < PORTAL_MAX; portal++)
            (void)endpoints[process].portals[portal].from;
        (void)endpoints[process].turn;
    }
}

void record_set_arrival(struct mirror *mirror, uint32_t process, struct arrival *arrival)
{
    free(mirror->arriving[process]);
    mirror->arriving[process] = arrival;
    relay_mark(mirror->relay, process, TRANSIT_EXPECTED, arrival);
    relay_mark(mirror->relay, process, TRANSIT_LOADED, arrival && arrival->has_state);
}

void record_set_snapshot(struct mirror *mirror, uint32_t process, struct snapshot *snapshot)
{
    free(mirror->snapshots[process]);
    mirror->snapshots[process] = snapshot;
    relay_mark(mirror->relay, process, TRANSIT_LEAVING, snapshot);
}
