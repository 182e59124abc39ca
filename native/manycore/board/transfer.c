/* See transfer.h. */
#include "transfer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arrival.h"

#define OLD_HOST_GONE "its old host is gone; it runs at the new one" /* its cost is unknown */

bool transfer_is_moving(const struct transfer *transfer, uint32_t process)
{
    return passage_is_moving(&transfer->passages[process]);
}

/* In HELD, and in no other step, the relay holds the parcels for the process. */
static void set_step(struct transfer *transfer, uint32_t process, enum passage_step step)
{
    transfer->passages[process].step = (uint8_t)step;
    transfer->relay->holding[process] = step == PASSAGE_HELD;
}

void transfer_start(struct transfer *transfer, uint32_t process, uint32_t tile, const struct uarea *area,
                    const uint8_t *image)
{
    uint32_t host = net_host_of_tile(transfer->net, tile);
    struct iovec parts[STATE_PARTS];
    static struct state state;
    size_t size = sizeof(state), count;
    uint8_t *bytes;

    memset(&state, 0, sizeof(state));
    state.to = tile;
    state.mode = MODE_DIRECT;
    state_describe(&transfer->window->locations[process], &state);
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
    net_send(transfer->net, host, FRAME_START, process, bytes, size);
    free(bytes);
}

static void end_move(struct transfer *transfer, uint32_t process, uint32_t to, const char *why)
{
    struct move *move = &transfer->window->moves[to % TILE_MAX];

    if (move->process != process || atomic_load(&move->step) != MOVE_ELSEWHERE)
        return;
    snprintf(move->why, sizeof(move->why), "%s", why);
    move->frozen = 0;
    atomic_store(&move->step, MOVE_ABORTED);
}

static void tell_aborted(struct transfer *transfer, uint32_t process, uint32_t host, const char *why)
{
    const struct passage *passage = &transfer->passages[process];
    struct order order = {.serial = passage->serial, .to = passage->to};

    snprintf(order.why, sizeof(order.why), "%s", why);
    if (!transfer->net->gone[host])
        net_send(transfer->net, host, FRAME_ABORT, process, &order, sizeof(order));
}

/* The process stays at its source. */
static void call_off(struct transfer *transfer, uint32_t process, const char *why, bool it_lives)
{
    struct passage *passage = &transfer->passages[process];
    uint32_t destination = net_host_of_tile(transfer->net, passage->to);

    if (!transfer_is_moving(transfer, process))
        return;
    set_step(transfer, process, PASSAGE_NONE);
    tell_aborted(transfer, process, destination, why);
    tell_aborted(transfer, process, passage->source, why);
    if (it_lives)
        relay_release(transfer->relay, process, passage->source);
    else
        relay_forget(&transfer->relay->held[process]);
    if (!transfer->net->gone[passage->source])
        net_send(transfer->net, passage->source, FRAME_GO, process, NULL, 0);
    end_move(transfer, process, passage->to, why);
}

void transfer_owner_lost(struct transfer *transfer, uint32_t process)
{
    call_off(transfer, process, "the process has ended", false);
}

/* After READY: a host is gone that would have sent RUNS, received it, or reported the cost. */
static void end_gone(struct transfer *transfer, uint32_t process, uint32_t host)
{
    struct passage *passage = &transfer->passages[process];
    bool heard = passage->step == PASSAGE_TOLD;

    set_step(transfer, process, PASSAGE_NONE);
    if (passage->source == host)
        end_move(transfer, process, passage->to, OLD_HOST_GONE);
    else if (!heard)
        tell_aborted(transfer, process, passage->source, "the destination's host is gone");
}

void transfer_host_gone(struct transfer *transfer, uint32_t host)
{
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        const struct passage *passage = &transfer->passages[process];
        bool to = net_host_of_tile(transfer->net, passage->to) == host;

        arrival_has_come(transfer->mirror, process); /* it runs here, so it is not lost with its source */
        if (passage->step == PASSAGE_NONE && passage->source == host && to) /* between two tiles of the host */
            end_move(transfer, process, passage->to, "its host is gone");
        if (passage->step == PASSAGE_NONE || (passage->source != host && !to))
            continue;
        if (passage->step == PASSAGE_GONE || passage->step == PASSAGE_TOLD)
            end_gone(transfer, process, host);
        else if (to)
            call_off(transfer, process, "the destination's host is gone", true);
        else
            call_off(transfer, process, "its host is gone", false);
    }
}

void transfer_arrived(struct transfer *transfer, uint32_t process)
{
    if (transfer->net->host == 0 && transfer->passages[process].step == PASSAGE_NONE)
        end_move(transfer, process, transfer->passages[process].to, OLD_HOST_GONE);
}

void transfer_ask(struct transfer *transfer, struct move *move)
{
    uint32_t source = net_host_of_tile(transfer->net, move->from);
    bool is_local = source == net_host_of_tile(transfer->net, move->to); /* between two tiles of the other host */
    struct passage *passage = &transfer->passages[move->process];
    struct order order = {.to = move->to, .mode = move->mode};

    atomic_store(&move->step, MOVE_ELSEWHERE);
    order.serial = ++passage->serial;
    passage->to = (uint8_t)move->to;
    passage->source = (uint8_t)source;
    set_step(transfer, move->process, is_local ? PASSAGE_NONE : PASSAGE_ASKED);
    net_send(transfer->net, source, is_local ? FRAME_MOVE : FRAME_MIGRATE, move->process, &order, sizeof(order));
}

void transfer_ended(struct transfer *transfer, const struct move *move)
{
    if (transfer->net->host == 0 && move->serial && transfer->passages[move->process].serial == move->serial)
        call_off(transfer, move->process, move->why, true);
}

/* The process has a new owner. */
static void commit(struct transfer *transfer, uint32_t process)
{
    struct passage *passage = &transfer->passages[process];
    struct location *location = &transfer->window->locations[process];
    uint32_t host = net_host_of_tile(transfer->net, passage->to);
    struct place place = {.state = PLACE_RUNNING, .slot = NO_SLOT, .tile = passage->to};

    if (host != 0 && window_place(transfer->window, process).state != PLACE_RUNNING) {
        call_off(transfer, process, "the process has ended", false);
        return;
    }
    set_step(transfer, process, PASSAGE_GONE);
    if (host != 0)
        atomic_fetch_add(&location->moves, 1);
    net_send(transfer->net, passage->source, FRAME_COMMITTED, process, NULL, 0);
    if (passage->source != 0 && host != 0)
        window_commit(transfer->window, process, atomic_load(&location->word), place);
    relay_release(transfer->relay, process, host);
    net_send(transfer->net, host, FRAME_GO, process, NULL, 0);
}

static void learn_cost(struct transfer *transfer, uint32_t process, const struct cost *cost)
{
    struct location *location = &transfer->window->locations[process];
    struct move *move = &transfer->window->moves[cost->to % TILE_MAX];
    struct place place = window_place(transfer->window, process);

    if (place.tile != cost->to && place.state == PLACE_RUNNING && !transfer_is_moving(transfer, process) &&
        !net_is_here(transfer->net, process) &&
        net_host_of_tile(transfer->net, place.tile) == net_host_of_tile(transfer->net, cost->to)) {
        place.tile = (uint8_t)cost->to; /* a move between two tiles of its host */
        atomic_fetch_add(&location->moves, 1);
        window_commit(transfer->window, process, atomic_load(&location->word), place);
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
static void pass_on(struct transfer *transfer, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    struct passage *passage = &transfer->passages[head->process];
    uint32_t destination = net_host_of_tile(transfer->net, passage->to), to, step;
    bool is_answer = head->kind == FRAME_WANT || head->kind == FRAME_RUNS;

    if (head->kind == FRAME_RUNS ? passage->step != PASSAGE_GONE : !transfer_is_moving(transfer, head->process))
        return;
    if (from != (is_answer ? destination : passage->source))
        return;
    to = is_answer ? passage->source : destination;
    if (head->kind == FRAME_RUNS)
        set_step(transfer, head->process, PASSAGE_TOLD);
    if (head->kind == FRAME_WANT && head->size == sizeof(struct want)) {
        memcpy(&step, payload + offsetof(struct want, step), sizeof(step));
        if (step == MOVE_RESERVED)
            set_step(transfer, head->process, PASSAGE_HELD);
    }
    if (to == 0)
        mirror_handle(transfer->mirror, head, payload);
    else
        net_send(transfer->net, to, head->kind, head->process, payload, head->size);
}

static void refused(struct transfer *transfer, uint32_t process, const struct order *order)
{
    if (order->serial != transfer->passages[process].serial)
        return;
    if (transfer_is_moving(transfer, process))
        call_off(transfer, process, order->why, true);
    else
        end_move(transfer, process, order->to, order->why);
}

/* Frames between the two sides of a move: the leader forwards them. */
static void on_sides(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    struct transfer *transfer = context;
    uint32_t serial = 0;

    if (transfer->net->host != 0) {
        mirror_handle(transfer->mirror, head, payload);
        return;
    }
    if (head->size >= sizeof(serial))
        memcpy(&serial, payload, sizeof(serial));
    if (serial == transfer->passages[head->process].serial)
        pass_on(transfer, from, head, payload);
}

/* Frames of one side to the leader. */
static void on_decision(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    struct transfer *transfer = context;
    uint32_t process = head->process, serial = 0;
    const struct passage *passage = &transfer->passages[process];
    const struct order order = net_read_order(head, payload);
    struct cost cost;

    if (transfer->net->host != 0)
        return;
    if (head->size >= sizeof(serial))
        memcpy(&serial, payload, sizeof(serial));
    if (head->kind == FRAME_REFUSED)
        refused(transfer, process, &order);
    else if (head->kind == FRAME_READY && transfer_is_moving(transfer, process) && serial == passage->serial &&
             from == net_host_of_tile(transfer->net, passage->to))
        commit(transfer, process);
    else if (head->kind == FRAME_MOVED && head->size == sizeof(cost) && serial == passage->serial)
        learn_cost(transfer, process, memcpy(&cost, payload, sizeof(cost)));
}

void transfer_init(struct transfer *transfer, struct mirror *mirror)
{
    static const enum frame_kind sides[] = {FRAME_OFFER, FRAME_WANT, FRAME_PAGES, FRAME_PIECE, FRAME_STATE, FRAME_RUNS};
    static const enum frame_kind decisions[] = {FRAME_READY, FRAME_REFUSED, FRAME_MOVED};

    transfer->net = mirror->net;
    transfer->relay = mirror->relay;
    transfer->mirror = mirror;
    transfer->window = mirror->window;
    for (size_t i = 0; i < sizeof(sides) / sizeof(*sides); i++)
        net_on_frame(transfer->net, sides[i], on_sides, transfer);
    for (size_t i = 0; i < sizeof(decisions) / sizeof(*decisions); i++)
        net_on_frame(transfer->net, decisions[i], on_decision, transfer);
}
