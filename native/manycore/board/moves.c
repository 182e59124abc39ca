/*
 * Moves as the name server sees them: it refuses what cannot be, reserves a slot, asks, and reports. A tile has at most
 * one move towards it; the record is its own from ASKED until the answer has been told and no tile has it in hand any more.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "../tracking.h"
#include "board.h"

#define STILL_NS 15000000000 /* from the request until it is frozen: more than the destination waits for the source */

static const char *const modes[] = {"faithful", "direct", "handoff", "precopy"};
static const char *const trackings[TRACKING_KINDS] = {"none", "mprotect", "userfaultfd"};

int moves_mode(const char *name)
{
    for (int mode = 0; mode < MODE_COUNT; mode++)
        if (strcmp(modes[mode], name) == 0)
            return mode;
    return -EINVAL;
}

/* A tile that stood still when the other side gave up may still write into the slot, or take the next move for its own. */
bool moves_is_in_hand(const struct board *board, uint32_t to)
{
    for (uint32_t tile = 0; tile < board->window->tile_count; tile++)
        if (atomic_load(&board->window->tiles[tile].alive) && atomic_load(&board->window->tiles[tile].in_hand) == 1 + to)
            return true;
    return false;
}

bool moves_is_free(const struct board *board, uint32_t tile)
{
    if (tile >= board->window->tile_count || !atomic_load(&board->window->tiles[tile].alive) ||
        atomic_load(&board->window->moves[tile].step) != MOVE_NONE || moves_is_in_hand(board, tile))
        return false;
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct place place = window_place(board->window, process);

        if (place.state == PLACE_RUNNING && place.tile == tile)
            return false;
    }
    return true;
}

bool moves_reserve_slot(const struct board *board, uint32_t *slot)
{
    uint32_t used = 0;

    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct place place = window_place(board->window, process);

        if (place.state == PLACE_RUNNING && place.slot < TILE_MAX)
            used |= 1u << place.slot;
    }
    for (uint32_t tile = 0; tile < board->window->tile_count; tile++)
        if ((atomic_load(&board->window->moves[tile].step) != MOVE_NONE || moves_is_in_hand(board, tile)) &&
            board->window->moves[tile].slot < TILE_MAX)
            used |= 1u << board->window->moves[tile].slot;
    for (*slot = 0; *slot < TILE_MAX; ++*slot)
        if (!(used >> *slot & 1))
            return true;
    return false;
}

int moves_ask(struct board *board, uint32_t process, uint32_t to, uint32_t mode, char *why, size_t room)
{
    struct window *window = board->window;
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
    if (!moves_is_free(board, to)) {
        snprintf(why, room, "tile %u has a process, expects one, or is dead", to);
        return -EBUSY;
    }
    for (uint32_t tile = 0; tile < window->tile_count; tile++)
        if (atomic_load(&window->moves[tile].step) != MOVE_NONE && window->moves[tile].process == process) {
            snprintf(why, room, "process %u is being moved", process);
            return -EBUSY;
        }
    elsewhere = !window_is_here(window, place.tile) || !window_is_here(window, to);
    if (mode == MODE_HANDOFF && net_host_of_tile(board, place.tile) != net_host_of_tile(board, to)) {
        snprintf(why, room, "handoff gives away pages of memory that both tiles share, and these are on two hosts");
        return -EINVAL;
    }
    move = &window->moves[to];
    window_clear_move(move);
    move->slot = place.slot;
    if (!elsewhere && mode != MODE_HANDOFF && !moves_reserve_slot(board, &move->slot)) {
        snprintf(why, room, "there are too many processes");
        return -EAGAIN;
    }
    move->process = process;
    move->from = place.tile;
    move->to = to;
    move->mode = mode;
    move->place = place_pack(place);
    move->asked = window_now();
    board->wished[to] = false;
    if (elsewhere) {
        transfer_ask(board, move);
        return 0;
    }
    atomic_store(&move->step, MOVE_ASKED);
    window_ring(window, to);
    return 0;
}

static void answer_wish(struct board *board, uint32_t tile, int error)
{
    struct tile_record *record = &board->window->tiles[tile];

    atomic_store(&record->answer, error);
    atomic_store(&record->wish, 0);
    window_ring(board->window, tile);
}

void moves_answer(struct board *board, uint32_t process, int error)
{
    struct place place = window_place(board->window, process);
    struct order order = {.mode = (uint32_t)-error};

    if (place.state != PLACE_RUNNING)
        return;
    if (window_is_here(board->window, place.tile))
        answer_wish(board, place.tile, error);
    else if (board->net.host == 0)
        net_send(board, net_host_of_tile(board, place.tile), FRAME_ANSWER, process, &order, sizeof(order));
}

static void take_wish(struct board *board, uint32_t tile)
{
    struct order order = {0};
    uint32_t wish = atomic_load(&board->window->tiles[tile].wish);
    char why[REASON_SIZE];
    int error = -ESRCH;

    if (!wish || wish & WISH_TAKEN)
        return;
    atomic_fetch_or(&board->window->tiles[tile].wish, WISH_TAKEN);
    wish--;
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct place place = window_place(board->window, process);

        if (place.state != PLACE_RUNNING || place.tile != tile)
            continue;
        order.to = wish & 0xff;
        order.mode = wish >> 8;
        if (board->net.host != 0) {
            net_send(board, 0, FRAME_WISH, process, &order, sizeof(order));
            return;
        }
        error = moves_ask(board, process, order.to, order.mode, why, sizeof(why));
    }
    if (error < 0)
        answer_wish(board, tile, error);
    else
        board->wished[wish & 0xff] = true;
}

/* The leader has asked for the move, and tells the client. */
static void tell_leader(struct board *board, const struct move *move, bool done)
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
        net_send(board, 0, FRAME_MOVED, move->process, &cost, sizeof(cost));
    else
        net_send(board, 0, FRAME_REFUSED, move->process, &order, sizeof(order));
}

static void tell(struct board *board, const struct move *move, bool done)
{
    char why[6 * REASON_SIZE + 1];

    client_escape(move->why, strlen(move->why), why);
    for (int i = 0; i < CLIENT_MAX; i++) {
        struct client *client = &board->clients[i];

        if (client->fd < 0 || !(client->moving >> move->to & 1))
            continue;
        if (done)
            client_say(client,
                       "{\"event\": \"moved\", \"process\": %u, \"from\": %u, \"to\": %u, \"mode\": \"%s\", "
                       "\"bytes\": %" PRIu64 ", \"before\": %" PRIu64 ", \"rounds\": %u, \"tracking\": \"%s\", "
                       "\"at_most\": %s, \"asked_ns\": %" PRId64
                       ", \"prepare_ns\": %" PRId64 ", \"freeze_ns\": %" PRId64
                       ", \"copy_ns\": %" PRId64 ", \"commit_ns\": %" PRId64 ", \"first_ns\": %" PRId64
                       ", \"all_ns\": %" PRId64 "}",
                       move->process, move->from, move->to, modes[move->mode], move->bytes,
                       move->before, move->rounds, trackings[move->tracking % TRACKING_KINDS],
                       move->at_most ? "true" : "false", move->asked,
                       move->freezing - move->asked, move->frozen - move->freezing, move->copied - move->frozen,
                       move->committed - move->copied,
                       move->first ? move->first - move->freezing : 0, move->all ? move->all - move->freezing : 0);
        else
            client_say(client, "{\"event\": \"failed\", \"process\": %u, \"code\": \"MOVE_FAILED\", \"why\": \"%s\"}",
                       move->process, why);
        client->moving &= ~(1u << move->to);
        if (!client->moving)
            client_close(client);
    }
}

/*
 * DONE: every thread that was ready runs again, or there is no process any more.
 * ABORTED: a source here that was frozen has taken the process back (the next epoch), or has died.
 */
static bool is_over(const struct board *board, const struct move *move, uint32_t step)
{
    struct place place = window_place(board->window, move->process), before = place_unpack(move->place);

    if (step == MOVE_ABORTED)
        return !move->frozen || !window_is_here(board->window, move->from) || place.epoch != before.epoch;
    return step == MOVE_DONE &&
           (atomic_load(&move->all) || place.epoch != before.epoch + 1 || place.state != PLACE_RUNNING);
}

bool moves_is_under_way(const struct board *board)
{
    for (uint32_t to = 0; to < board->window->tile_count; to++)
        if (atomic_load(&board->window->moves[to].step) != MOVE_NONE)
            return true;
    return false;
}

/*
 * Nobody stands yet, and each side waits for the other; that for the source the destination bounds itself. A tile that
 * stands still has the record in hand until it goes on and sees what has become of it.
 */
static uint32_t give_up_still(struct board *board, struct move *move, uint32_t step)
{
    if (step < MOVE_ASKED || step > MOVE_RESERVED || !window_is_here(board->window, move->from) ||
        !window_is_here(board->window, move->to) || window_now() - move->asked < STILL_NS ||
        !atomic_compare_exchange_strong(&move->step, &step, MOVE_ABORTED))
        return step;
    snprintf(move->why, sizeof(move->why), "tile %u or tile %u stands still", move->from, move->to);
    window_ring(board->window, move->from);
    window_ring(board->window, move->to);
    return MOVE_ABORTED;
}

void moves_serve(struct board *board)
{
    for (uint32_t to = 0; to < board->window->tile_count; to++) {
        struct move *move = &board->window->moves[to];
        uint32_t step = give_up_still(board, move, atomic_load(&move->step));

        if (step == MOVE_NONE || mirror_finish(board, move, step == MOVE_ABORTED) || !is_over(board, move, step))
            continue;
        if (board->net.host != 0)
            tell_leader(board, move, step == MOVE_DONE);
        else
            tell(board, move, step == MOVE_DONE);
        if (step == MOVE_ABORTED)
            transfer_ended(board, move);
        if (step == MOVE_ABORTED && board->wished[to])
            moves_answer(board, move->process, -ECANCELED);
        atomic_store(&move->step, MOVE_NONE);
    }
    for (uint32_t tile = 0; tile < board->window->tile_count; tile++)
        if (window_is_here(board->window, tile) && atomic_load(&board->window->tiles[tile].alive))
            take_wish(board, tile);
}
