/* See moves.h. */
#include "moves.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "arrival.h"
#include "slots.h"

#define STILL_NS 15000000000 /* from the request until it is frozen: more than the destination waits for the source */

static const char *const modes[] = {"faithful", "direct", "handoff", "precopy"};

int moves_mode(const char *name)
{
    for (int mode = 0; mode < MODE_COUNT; mode++)
        if (strcmp(modes[mode], name) == 0)
            return mode;
    return -EINVAL;
}

const char *moves_mode_name(uint32_t mode)
{
    return modes[mode];
}

int moves_ask(struct moves *moves, uint32_t process, uint32_t to, uint32_t mode, char *why, size_t room)
{
    struct window *window = moves->window;
    struct move *move;
    struct place place = {0};
    bool elsewhere;

    if (mode >= MODE_COUNT) {
        snprintf(why, room, "there is no such mode");
        return -EINVAL;
    }
    if (process >= 1 && process < PROCESS_MAX)
        place = window_place(window, process);
    if (place.state == PLACE_FREE) {
        snprintf(why, room, "there is no process %u", process);
        return -ENOENT;
    }
    if (place.state != PLACE_RUNNING) {
        snprintf(why, room, "process %u has ended", process);
        return -ESRCH;
    }
    if (to >= window->tile_count) {
        snprintf(why, room, "there is no tile %u; there are %u", to, window->tile_count);
        return -ENOENT;
    }
    if (to == place.tile) {
        snprintf(why, room, "process %u is on tile %u", process, to);
        return -EALREADY;
    }
    if (!slots_is_free(moves->window, to)) {
        snprintf(why, room, "tile %u has a process, expects one, or is dead", to);
        return -EBUSY;
    }
    for (uint32_t tile = 0; tile < window->tile_count; tile++)
        if (atomic_load(&window->moves[tile].step) != MOVE_NONE && window->moves[tile].process == process) {
            snprintf(why, room, "process %u is being moved", process);
            return -EBUSY;
        }
    elsewhere = !window_is_here(window, place.tile) || !window_is_here(window, to);
    if (mode == MODE_HANDOFF && net_host_of_tile(moves->net, place.tile) != net_host_of_tile(moves->net, to)) {
        snprintf(why, room, "handoff gives away pages of memory that both tiles share, and these are on two hosts");
        return -EINVAL;
    }
    move = &window->moves[to];
    window_clear_move(move);
    move->slot = place.slot;
    if (!elsewhere && mode != MODE_HANDOFF && !slots_reserve(moves->window, &move->slot)) {
        snprintf(why, room, "there are too many processes");
        return -EAGAIN;
    }
    move->process = process;
    move->from = place.tile;
    move->to = to;
    move->mode = mode;
    move->place = place_pack(place);
    move->asked = window_now();
    moves->wished[to] = false;
    if (elsewhere) {
        transfer_ask(moves->transfer, move);
        return 0;
    }
    atomic_store(&move->step, MOVE_ASKED);
    window_ring(window, to);
    return 0;
}

static void answer_wish(struct moves *moves, uint32_t tile, int error)
{
    struct tile_record *record = &moves->window->tiles[tile];

    atomic_store(&record->answer, error);
    atomic_store(&record->wish, 0);
    window_ring(moves->window, tile);
}

/* Tells a process, wherever it is, that its wish to move is refused. */
static void answer(struct moves *moves, uint32_t process, int error)
{
    struct place place = window_place(moves->window, process);
    struct order order = {.mode = (uint32_t)-error};

    if (place.state != PLACE_RUNNING)
        return;
    if (window_is_here(moves->window, place.tile))
        answer_wish(moves, place.tile, error);
    else if (moves->net->host == 0)
        net_send(moves->net, net_host_of_tile(moves->net, place.tile), FRAME_ANSWER, process, &order, sizeof(order));
}

static void execute_wish(struct moves *moves, uint32_t tile)
{
    struct order order = {0};
    uint32_t wish = atomic_load(&moves->window->tiles[tile].wish);
    char why[REASON_SIZE];
    int error = -ESRCH;

    if (!wish || wish & WISH_TAKEN)
        return;
    atomic_fetch_or(&moves->window->tiles[tile].wish, WISH_TAKEN);
    wish--;
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct place place = window_place(moves->window, process);

        if (place.state != PLACE_RUNNING || place.tile != tile)
            continue;
        order.to = wish & 0xff;
        order.mode = wish >> 8;
        if (moves->net->host != 0) {
            net_send(moves->net, 0, FRAME_WISH, process, &order, sizeof(order));
            return;
        }
        error = moves_ask(moves, process, order.to, order.mode, why, sizeof(why));
    }
    if (error < 0)
        answer_wish(moves, tile, error);
    else
        moves->wished[wish & 0xff] = true;
}

/* The leader asked for the move, and reports its end to the client. */
static void tell_leader(struct moves *moves, const struct move *move, bool done)
{
    struct cost cost = {
        .serial = move->serial,
        .to = move->to,
        .rounds = move->rounds,
        .tracking = move->tracking,
        .at_most = move->at_most,
        .bytes = move->bytes,
        .before = move->before,
        .prepare = move->freezing - move->asked,
        .freezing = move->frozen - move->freezing,
        .copying = move->copied - move->frozen,
        .committing = move->committed - move->copied,
        .first = move->first ? move->first - move->freezing : 0,
        .all = move->all ? move->all - move->freezing : 0,
    };
    struct order order = {.serial = move->serial, .to = move->to};

    snprintf(order.why, sizeof(order.why), "%s", move->why);
    if (done)
        net_send(moves->net, 0, FRAME_MOVED, move->process, &cost, sizeof(cost));
    else
        net_send(moves->net, 0, FRAME_REFUSED, move->process, &order, sizeof(order));
}

/*
 * DONE: every thread that was ready runs again, or there is no process any more.
 * ABORTED: a frozen source here has resumed the process (the next epoch), or has died.
 */
static bool is_over(const struct moves *moves, const struct move *move, uint32_t step)
{
    struct place place = window_place(moves->window, move->process), before = place_unpack(move->place);

    if (step == MOVE_ABORTED)
        return !move->frozen || !window_is_here(moves->window, move->from) || place.epoch != before.epoch;
    return step == MOVE_DONE &&
           (atomic_load(&move->all) || place.epoch != before.epoch + 1 || place.state != PLACE_RUNNING);
}

bool moves_is_under_way(const struct moves *moves)
{
    for (uint32_t to = 0; to < moves->window->tile_count; to++)
        if (atomic_load(&moves->window->moves[to].step) != MOVE_NONE)
            return true;
    return false;
}

/*
 * Neither side is frozen yet, and each waits for the other: aborted when a tile of this host does not run for so long.
 * That tile has the record in hand until it runs again and sees it. Between hosts, the destination bounds its wait by
 * itself.
 */
static uint32_t abort_stalled(struct moves *moves, struct move *move, uint32_t step)
{
    if (step < MOVE_ASKED || step > MOVE_RESERVED || !window_is_here(moves->window, move->from) ||
        !window_is_here(moves->window, move->to) || window_now() - move->asked < STILL_NS ||
        !atomic_compare_exchange_strong(&move->step, &step, MOVE_ABORTED))
        return step;
    snprintf(move->why, sizeof(move->why), "tile %u or tile %u stands still", move->from, move->to);
    window_ring(moves->window, move->from);
    window_ring(moves->window, move->to);
    return MOVE_ABORTED;
}

void moves_serve(struct moves *moves)
{
    for (uint32_t to = 0; to < moves->window->tile_count; to++) {
        struct move *move = &moves->window->moves[to];
        uint32_t step = abort_stalled(moves, move, atomic_load(&move->step));
        enum arrival_end arrival;

        if (step == MOVE_NONE)
            continue;
        arrival = arrival_finish(moves->mirror, move, step == MOVE_ABORTED);
        if (arrival == ARRIVAL_TOLD)
            transfer_arrived(moves->transfer, move->process);
        if (arrival != ARRIVAL_NOT || !is_over(moves, move, step))
            continue;
        if (moves->net->host != 0)
            tell_leader(moves, move, step == MOVE_DONE);
        else
            moves->ended(moves->context, move, step == MOVE_DONE);
        if (step == MOVE_ABORTED)
            transfer_ended(moves->transfer, move);
        if (step == MOVE_ABORTED && moves->wished[to])
            answer(moves, move->process, -ECANCELED);
        atomic_store(&move->step, MOVE_NONE);
    }
    for (uint32_t tile = 0; tile < moves->window->tile_count; tile++)
        if (window_is_here(moves->window, tile) && atomic_load(&moves->window->tiles[tile].alive))
            execute_wish(moves, tile);
}

static void wish(struct moves *moves, uint32_t process, const struct order *order)
{
    char why[REASON_SIZE];
    int error = moves_ask(moves, process, order->to, order->mode, why, sizeof(why));

    if (error < 0)
        answer(moves, process, error);
    else
        moves->wished[order->to] = true;
}

/* A follower moves its process between two of its tiles. */
static void move_here(struct moves *moves, uint32_t process, const struct order *order)
{
    char why[REASON_SIZE] = "there is no such tile here";

    if (order->to >= moves->window->tile_count || !window_is_here(moves->window, order->to) ||
        moves_ask(moves, process, order->to, order->mode, why, sizeof(why)) < 0)
        record_refuse(moves->mirror, process, order->serial, order->to, why);
    else
        moves->window->moves[order->to].serial = order->serial;
}

static void on_frame(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    struct moves *moves = context;
    const struct order order = net_read_order(head, payload);

    (void)from;
    if (head->kind == FRAME_MOVE)
        move_here(moves, head->process, &order);
    else if (head->kind == FRAME_ANSWER)
        answer(moves, head->process, -(int)order.mode);
    else if (moves->net->host == 0)
        wish(moves, head->process, &order);
}

void moves_init(struct moves *moves, struct transfer *transfer, move_ended_handler *ended, void *context)
{
    static const enum frame_kind kinds[] = {FRAME_MOVE, FRAME_ANSWER, FRAME_WISH};

    moves->net = transfer->net;
    moves->mirror = transfer->mirror;
    moves->transfer = transfer;
    moves->window = transfer->window;
    moves->ended = ended;
    moves->context = context;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        net_on_frame(moves->net, kinds[i], on_frame, moves);
}
