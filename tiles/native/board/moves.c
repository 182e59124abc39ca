/* See moves.h. */
#include "moves.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "../shared/slots.h"
#include "migration/incoming_move.h"

#define LET_GO_NS 1000000000
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
    struct shared_memory *shared = moves->shared;
    struct move *move;
    struct place place = {0};
    bool elsewhere;

    if (mode >= MODE_COUNT) {
        snprintf(why, room, "there is no such mode");
        return -EINVAL;
    }
    if (process >= 1 && process < PROCESS_MAX)
        place = shared_place(shared, process);
    if (place.state == PLACE_FREE) {
        snprintf(why, room, "there is no process %u", process);
        return -ENOENT;
    }
    if (place.state != PLACE_RUNNING) {
        snprintf(why, room, "process %u has ended", process);
        return -ESRCH;
    }
    if (atomic_load(&shared->fixed)) {
        snprintf(why, room, "this build of the tiles keeps a process among the kernel's data: it cannot move");
        return -EOPNOTSUPP;
    }
    if (to >= shared->tile_count) {
        snprintf(why, room, "there is no tile %u; there are %u", to, shared->tile_count);
        return -ENOENT;
    }
    if (to == place.tile) {
        snprintf(why, room, "process %u is on tile %u", process, to);
        return -EALREADY;
    }
    if (!slots_is_free(moves->shared, to)) {
        snprintf(why, room, "tile %u has a process, expects one, or is dead", to);
        return -EBUSY;
    }
    for (uint32_t tile = 0; tile < shared->tile_count; tile++)
        if (atomic_load(&shared->moves[tile].step) != MOVE_NONE && shared->moves[tile].process == process) {
            snprintf(why, room, "process %u is being moved", process);
            return -EBUSY;
        }
    elsewhere = !shared_is_here(shared, place.tile) || !shared_is_here(shared, to);
    if (mode == MODE_HANDOFF && net_host_of_tile(moves->net, place.tile) != net_host_of_tile(moves->net, to)) {
        snprintf(why, room, "handoff gives away pages of memory that both tiles share, and these are on two hosts");
        return -EINVAL;
    }
    move = &shared->moves[to];
    shared_clear_move(move);
    move->slot = place.slot;
    if (!elsewhere && mode != MODE_HANDOFF && !slots_reserve(moves->shared, &move->slot)) {
        snprintf(why, room, "there are too many processes");
        return -EAGAIN;
    }
    move->process = process;
    move->from = place.tile;
    move->to = to;
    move->mode = mode;
    move->place = place_pack(place);
    move->asked = shared_now();
    moves->wished[to] = false;
    if (elsewhere) {
        coordinator_ask(moves->coordinator, move);
        return 0;
    }
    atomic_store(&move->step, MOVE_ASKED);
    shared_ring(shared, to);
    return 0;
}

static void answer_wish(struct moves *moves, uint32_t tile, int error)
{
    struct tile_record *record = &moves->shared->tiles[tile];

    atomic_store(&record->answer, error);
    atomic_store(&record->wish, 0);
    shared_ring(moves->shared, tile);
}

/* Tells a process, wherever it is, that its wish to move is refused. */
static void answer(struct moves *moves, uint32_t process, int error)
{
    struct place place = shared_place(moves->shared, process);
    struct order order = {.mode = (uint32_t)-error};

    if (place.state != PLACE_RUNNING)
        return;
    if (shared_is_here(moves->shared, place.tile))
        answer_wish(moves, place.tile, error);
    else if (moves->net->host == 0)
        net_send(moves->net, net_host_of_tile(moves->net, place.tile), FRAME_ANSWER, process, &order, sizeof(order));
}

static void execute_wish(struct moves *moves, uint32_t tile)
{
    struct order order = {0};
    uint32_t wish = atomic_load(&moves->shared->tiles[tile].wish);
    char why[REASON_SIZE];
    int error = -ESRCH;

    if (!wish || wish & WISH_TAKEN)
        return;
    atomic_fetch_or(&moves->shared->tiles[tile].wish, WISH_TAKEN);
    wish--;
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct place place = shared_place(moves->shared, process);

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

/* A tile lets go of an aborted move soon after it has seen it; a tile that is stopped is not waited for. */
static bool is_let_go(struct moves *moves, uint32_t to)
{
    if (!slots_is_in_hand(moves->shared, to))
        return true;
    if (!moves->aborted[to])
        moves->aborted[to] = shared_now();
    return shared_now() - moves->aborted[to] >= LET_GO_NS;
}

/*
 * DONE: every thread that was ready runs again, or there is no process any more.
 * ABORTED: a frozen source here has resumed the process (the next epoch), or has died; the destination is free again.
 */
static bool is_over(struct moves *moves, const struct move *move, uint32_t step)
{
    struct place place = shared_place(moves->shared, move->process), before = place_unpack(move->place);

    if (step == MOVE_ABORTED)
        return (!move->frozen || !shared_is_here(moves->shared, move->from) || place.epoch != before.epoch) &&
               is_let_go(moves, move->to);
    return step == MOVE_DONE &&
           (atomic_load(&move->all) || place.epoch != before.epoch + 1 || place.state != PLACE_RUNNING);
}

bool moves_is_under_way(const struct moves *moves)
{
    for (uint32_t to = 0; to < moves->shared->tile_count; to++)
        if (atomic_load(&moves->shared->moves[to].step) != MOVE_NONE)
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
    if (step < MOVE_ASKED || step > MOVE_RESERVED || !shared_is_here(moves->shared, move->from) ||
        !shared_is_here(moves->shared, move->to) || shared_now() - move->asked < STILL_NS ||
        !atomic_compare_exchange_strong(&move->step, &step, MOVE_ABORTED))
        return step;
    snprintf(move->why, sizeof(move->why), "tile %u or tile %u does not run", move->from, move->to);
    shared_ring(moves->shared, move->from);
    shared_ring(moves->shared, move->to);
    return MOVE_ABORTED;
}

void moves_serve(struct moves *moves)
{
    for (uint32_t to = 0; to < moves->shared->tile_count; to++) {
        struct move *move = &moves->shared->moves[to];
        uint32_t step = abort_stalled(moves, move, atomic_load(&move->step));
        enum incoming_end incoming;

        if (step == MOVE_NONE)
            continue;
        incoming = incoming_finish(moves->proxy, move, step == MOVE_ABORTED);
        if (incoming == INCOMING_TOLD)
            coordinator_arrived(moves->coordinator, move->process);
        if (incoming != INCOMING_NOT || !is_over(moves, move, step))
            continue;
        if (moves->net->host != 0)
            tell_leader(moves, move, step == MOVE_DONE);
        else
            moves->ended(moves->context, move, step == MOVE_DONE);
        if (step == MOVE_ABORTED)
            coordinator_ended(moves->coordinator, move);
        if (step == MOVE_ABORTED && moves->wished[to])
            answer(moves, move->process, -ECANCELED);
        moves->aborted[to] = 0;
        atomic_store(&move->step, MOVE_NONE);
    }
    for (uint32_t tile = 0; tile < moves->shared->tile_count; tile++)
        if (shared_is_here(moves->shared, tile) && atomic_load(&moves->shared->tiles[tile].alive))
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

    if (order->to >= moves->shared->tile_count || !shared_is_here(moves->shared, order->to) ||
        moves_ask(moves, process, order->to, order->mode, why, sizeof(why)) < 0)
        record_refuse(moves->proxy, process, order->serial, order->to, why);
    else
        moves->shared->moves[order->to].serial = order->serial;
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

void moves_init(struct moves *moves, struct move_coordinator *coordinator, move_ended_handler *ended, void *context)
{
    static const enum frame_kind kinds[] = {FRAME_MOVE, FRAME_ANSWER, FRAME_WISH};

    moves->net = coordinator->net;
    moves->proxy = coordinator->proxy;
    moves->coordinator = coordinator;
    moves->shared = coordinator->shared;
    moves->ended = ended;
    moves->context = context;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        net_on_frame(moves->net, kinds[i], on_frame, moves);
}
