/* See move_coordinator.h. */
#include "move_coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "incoming_move.h"

#define OLD_HOST_GONE "its old host is gone; it runs at the new one" /* its cost is unknown */

bool coordinator_is_moving(const struct move_coordinator *coordinator, uint32_t process)
{
    return coordinated_move_is_under_way(&coordinator->coordinated[process]);
}

/* In FREEZING, and in no other step, the router holds the parcels for the process. */
static void set_step(struct move_coordinator *coordinator, uint32_t process, enum coordination_step step)
{
    coordinator->coordinated[process].step = (uint8_t)step;
    coordinator->router->holding[process] = step == COORDINATION_FREEZING;
}

void coordinator_start(struct move_coordinator *coordinator, uint32_t process, uint32_t tile,
                       const struct user_area *area, const uint8_t *image)
{
    uint32_t host = net_host_of_tile(coordinator->net, tile);
    struct iovec parts[STATE_PARTS];
    static struct process_state state;
    size_t size = sizeof(state), count;
    uint8_t *bytes;

    memset(&state, 0, sizeof(state));
    state.to = tile;
    state.mode = MODE_DIRECT;
    state_describe(&coordinator->shared->locations[process], &state);
    state_seal(&state, NULL);
    count = state_list_memory(&state, area, image, parts);
    for (size_t i = 0; i < count; i++)
        size += parts[i].iov_len;
    bytes = malloc(size);
    if (!bytes)
        abort();
    memcpy(bytes, &state, sizeof(state));
    size = sizeof(state);
    for (size_t i = 0; i < count; size += parts[i++].iov_len) /* the next program is loaded into the same slot */
        memcpy(bytes + size, parts[i].iov_base, parts[i].iov_len);
    net_send(coordinator->net, host, FRAME_START, process, bytes, size);
    free(bytes);
}

static void end_move(struct move_coordinator *coordinator, uint32_t process, uint32_t to, const char *why)
{
    struct move *move = &coordinator->shared->moves[to % TILE_MAX];

    if (move->process != process || atomic_load(&move->step) != MOVE_ELSEWHERE)
        return;
    snprintf(move->why, sizeof(move->why), "%s", why);
    move->frozen = 0;
    atomic_store(&move->step, MOVE_ABORTED);
}

static void tell_aborted(struct move_coordinator *coordinator, uint32_t process, uint32_t host, const char *why)
{
    const struct coordinated_move *coordinated = &coordinator->coordinated[process];
    struct order order = {.serial = coordinated->serial, .to = coordinated->to};

    snprintf(order.why, sizeof(order.why), "%s", why);
    if (!coordinator->net->gone[host])
        net_send(coordinator->net, host, FRAME_ABORT, process, &order, sizeof(order));
}

/* The process stays at its source. */
static void call_off(struct move_coordinator *coordinator, uint32_t process, const char *why, bool it_lives)
{
    struct coordinated_move *coordinated = &coordinator->coordinated[process];
    uint32_t destination = net_host_of_tile(coordinator->net, coordinated->to);

    if (!coordinator_is_moving(coordinator, process))
        return;
    set_step(coordinator, process, COORDINATION_NONE);
    tell_aborted(coordinator, process, destination, why);
    tell_aborted(coordinator, process, coordinated->source, why);
    if (it_lives)
        router_release(coordinator->router, process, coordinated->source);
    else
        router_forget(&coordinator->router->held[process]);
    if (!coordinator->net->gone[coordinated->source])
        net_send(coordinator->net, coordinated->source, FRAME_GO, process, NULL, 0);
    end_move(coordinator, process, coordinated->to, why);
}

void coordinator_owner_lost(struct move_coordinator *coordinator, uint32_t process)
{
    call_off(coordinator, process, "the process has ended", false);
}

/* After READY: a host is gone that would have sent RUNS, received it, or reported the cost. */
static void end_gone(struct move_coordinator *coordinator, uint32_t process, uint32_t host)
{
    struct coordinated_move *coordinated = &coordinator->coordinated[process];
    bool heard = coordinated->step == COORDINATION_TIMED;

    set_step(coordinator, process, COORDINATION_NONE);
    if (coordinated->source == host)
        end_move(coordinator, process, coordinated->to, OLD_HOST_GONE);
    else if (!heard)
        tell_aborted(coordinator, process, coordinated->source, "the destination's host is gone");
}

void coordinator_host_gone(struct move_coordinator *coordinator, uint32_t host)
{
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        const struct coordinated_move *coordinated = &coordinator->coordinated[process];
        bool to = net_host_of_tile(coordinator->net, coordinated->to) == host;

        incoming_has_come(coordinator->proxy, process); /* it runs here, so it is not lost with its source */
        /* between two tiles of the host */
        if (coordinated->step == COORDINATION_NONE && coordinated->source == host && to)
            end_move(coordinator, process, coordinated->to, "its host is gone");
        if (coordinated->step == COORDINATION_NONE || (coordinated->source != host && !to))
            continue;
        if (coordinated->step == COORDINATION_COMMITTED || coordinated->step == COORDINATION_TIMED)
            end_gone(coordinator, process, host);
        else if (to)
            call_off(coordinator, process, "the destination's host is gone", true);
        else
            call_off(coordinator, process, "its host is gone", false);
    }
}

void coordinator_arrived(struct move_coordinator *coordinator, uint32_t process)
{
    if (coordinator->net->host == 0 && coordinator->coordinated[process].step == COORDINATION_NONE)
        end_move(coordinator, process, coordinator->coordinated[process].to, OLD_HOST_GONE);
}

void coordinator_ask(struct move_coordinator *coordinator, struct move *move)
{
    uint32_t source = net_host_of_tile(coordinator->net, move->from);
    bool is_local = source == net_host_of_tile(coordinator->net, move->to); /* between two tiles of the other host */
    struct coordinated_move *coordinated = &coordinator->coordinated[move->process];
    struct order order = {.to = move->to, .mode = move->mode};

    atomic_store(&move->step, MOVE_ELSEWHERE);
    order.serial = ++coordinated->serial;
    coordinated->to = (uint8_t)move->to;
    coordinated->source = (uint8_t)source;
    set_step(coordinator, move->process, is_local ? COORDINATION_NONE : COORDINATION_ASKED);
    net_send(coordinator->net, source, is_local ? FRAME_MOVE : FRAME_MIGRATE, move->process, &order, sizeof(order));
}

void coordinator_ended(struct move_coordinator *coordinator, const struct move *move)
{
    if (coordinator->net->host == 0 && move->serial && coordinator->coordinated[move->process].serial == move->serial)
        call_off(coordinator, move->process, move->why, true);
}

/* The process has a new owner. */
static void commit(struct move_coordinator *coordinator, uint32_t process)
{
    struct coordinated_move *coordinated = &coordinator->coordinated[process];
    struct location *location = &coordinator->shared->locations[process];
    uint32_t host = net_host_of_tile(coordinator->net, coordinated->to);
    struct place place = {.state = PLACE_RUNNING, .slot = NO_SLOT, .tile = coordinated->to};

    if (host != 0 && shared_place(coordinator->shared, process).state != PLACE_RUNNING) {
        call_off(coordinator, process, "the process has ended", false);
        return;
    }
    set_step(coordinator, process, COORDINATION_COMMITTED);
    if (host != 0)
        atomic_fetch_add(&location->moves, 1);
    net_send(coordinator->net, coordinated->source, FRAME_COMMITTED, process, NULL, 0);
    if (coordinated->source != 0 && host != 0)
        shared_commit(coordinator->shared, process, atomic_load(&location->word), place);
    router_release(coordinator->router, process, host);
    net_send(coordinator->net, host, FRAME_GO, process, NULL, 0);
}

static void learn_cost(struct move_coordinator *coordinator, uint32_t process, const struct cost *cost)
{
    struct location *location = &coordinator->shared->locations[process];
    struct move *move = &coordinator->shared->moves[cost->to % TILE_MAX];
    struct place place = shared_place(coordinator->shared, process);

    if (place.tile != cost->to && place.state == PLACE_RUNNING && !coordinator_is_moving(coordinator, process) &&
        !net_is_here(coordinator->net, process) &&
        net_host_of_tile(coordinator->net, place.tile) == net_host_of_tile(coordinator->net, cost->to)) {
        place.tile = (uint8_t)cost->to; /* a move between two tiles of its host */
        atomic_fetch_add(&location->moves, 1);
        shared_commit(coordinator->shared, process, atomic_load(&location->word), place);
    }
    if (move->process != process || atomic_load(&move->step) != MOVE_ELSEWHERE)
        return;
    move->bytes = cost->bytes;
    move->before = cost->before;
    move->rounds = cost->rounds;
    move->tracking = cost->tracking;
    move->at_most = cost->at_most;
    move->freezing = move->asked + cost->prepare;
    move->frozen = move->freezing + cost->freezing;
    move->copied = move->frozen + cost->copying;
    move->committed = move->copied + cost->committing;
    move->first = move->freezing + cost->first;
    move->all = move->freezing + cost->all;
    atomic_store(&move->step, MOVE_DONE);
}

/* The leader: forwards a frame from one side of the move to the other, if it fits the step. */
static void pass_on(struct move_coordinator *coordinator, uint32_t from, const struct frame_head *head,
                    const uint8_t *payload)
{
    struct coordinated_move *coordinated = &coordinator->coordinated[head->process];
    uint32_t destination = net_host_of_tile(coordinator->net, coordinated->to), to, step;
    bool is_answer = head->kind == FRAME_WANT || head->kind == FRAME_RUNS;

    if (head->kind == FRAME_RUNS ? coordinated->step != COORDINATION_COMMITTED
                                 : !coordinator_is_moving(coordinator, head->process))
        return;
    if (from != (is_answer ? destination : coordinated->source))
        return;
    to = is_answer ? coordinated->source : destination;
    if (head->kind == FRAME_RUNS)
        set_step(coordinator, head->process, COORDINATION_TIMED);
    if (head->kind == FRAME_WANT && head->size == sizeof(struct want)) {
        memcpy(&step, payload + offsetof(struct want, step), sizeof(step));
        if (step == MOVE_RESERVED)
            set_step(coordinator, head->process, COORDINATION_FREEZING);
    }
    if (to == 0)
        proxy_handle(coordinator->proxy, head, payload);
    else
        net_send(coordinator->net, to, head->kind, head->process, payload, head->size);
}

static void refused(struct move_coordinator *coordinator, uint32_t process, const struct order *order)
{
    if (order->serial != coordinator->coordinated[process].serial)
        return;
    if (coordinator_is_moving(coordinator, process))
        call_off(coordinator, process, order->why, true);
    else
        end_move(coordinator, process, order->to, order->why);
}

/* Frames between the two sides of a move: the leader forwards them. */
static void on_sides(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    struct move_coordinator *coordinator = context;
    uint32_t serial = 0;

    if (coordinator->net->host != 0) {
        proxy_handle(coordinator->proxy, head, payload);
        return;
    }
    if (head->size >= sizeof(serial))
        memcpy(&serial, payload, sizeof(serial));
    if (serial == coordinator->coordinated[head->process].serial)
        pass_on(coordinator, from, head, payload);
}

/* Frames of one side to the leader. */
static void on_decision(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    struct move_coordinator *coordinator = context;
    uint32_t process = head->process, serial = 0;
    const struct coordinated_move *coordinated = &coordinator->coordinated[process];
    const struct order order = net_read_order(head, payload);
    struct cost cost;

    if (coordinator->net->host != 0)
        return;
    if (head->size >= sizeof(serial))
        memcpy(&serial, payload, sizeof(serial));
    if (head->kind == FRAME_REFUSED)
        refused(coordinator, process, &order);
    else if (head->kind == FRAME_READY && coordinator_is_moving(coordinator, process) &&
             serial == coordinated->serial &&
             from == net_host_of_tile(coordinator->net, coordinated->to))
        commit(coordinator, process);
    else if (head->kind == FRAME_MOVED && head->size == sizeof(cost) && serial == coordinated->serial)
        learn_cost(coordinator, process, memcpy(&cost, payload, sizeof(cost)));
}

void coordinator_init(struct move_coordinator *coordinator, struct move_proxy *proxy)
{
    static const enum frame_kind sides[] = {FRAME_OFFER, FRAME_WANT, FRAME_PAGES, FRAME_PIECE, FRAME_STATE, FRAME_RUNS};
    static const enum frame_kind decisions[] = {FRAME_READY, FRAME_REFUSED, FRAME_MOVED};

    coordinator->net = proxy->net;
    coordinator->router = proxy->router;
    coordinator->proxy = proxy;
    coordinator->shared = proxy->shared;
    for (size_t i = 0; i < sizeof(sides) / sizeof(*sides); i++)
        net_on_frame(coordinator->net, sides[i], on_sides, coordinator);
    for (size_t i = 0; i < sizeof(decisions) / sizeof(*decisions); i++)
        net_on_frame(coordinator->net, decisions[i], on_decision, coordinator);
}
