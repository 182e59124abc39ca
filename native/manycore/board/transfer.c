/*
 * Moves of processes between hosts, and starts on other hosts: the leader's part (net.h). It passes on what the two
 * hosts say to each other, keeps what comes for the process meanwhile, and decides.
 *
 * Invariant: a process has one owner here, changed by the first READY of a move that has not been called off; a move
 * that was called off, or has come to its end, is not heard of again, because its serial number is not the last.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

#define OLD_HOST_GONE "its old host is gone; it runs at the new one" /* nobody tells what that has cost */

bool transfer_is_moving(const struct board *board, uint32_t process)
{
    uint8_t step = board->net.passages[process].step;

    return step == PASSAGE_ASKED || step == PASSAGE_HELD;
}

void transfer_start(struct board *board, uint32_t process, uint32_t tile, const struct uarea *area,
                    const uint8_t *image)
{
    uint32_t host = net_host_of_tile(board, tile);
    struct iovec parts[STATE_PARTS];
    static struct state state;
    size_t size = sizeof(state), count;
    uint8_t *bytes;

    memset(&state, 0, sizeof(state));
    state.to = tile;
    state.mode = MODE_DIRECT;
    state_describe(&board->window->locations[process], &state);
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
    net_send(board, host, FRAME_START, process, bytes, size);
    free(bytes);
}

/* What was kept goes where the process is now. */
static void release_held(struct board *board, uint32_t process, uint32_t host)
{
    struct queue *held = &board->net.held[process];

    for (const struct kept *kept = held->first; kept; kept = kept->next)
        if (host == 0)
            relay_deliver(board, process, &kept->parcel, kept->bytes);
        else
            link_send_parts(&board->net.links[host], FRAME_PARCEL, process, host, &kept->parcel, sizeof(kept->parcel),
                            kept->bytes, kept->parcel.size);
    relay_forget(held);
}

static void end_record(struct board *board, uint32_t process, uint32_t to, const char *why)
{
    struct move *move = &board->window->moves[to % TILE_MAX];

    if (move->process != process || atomic_load(&move->step) != MOVE_ELSEWHERE)
        return;
    snprintf(move->why, sizeof(move->why), "%s", why);
    move->frozen = 0;
    atomic_store(&move->step, MOVE_ABORTED);
}

static void tell_aborted(struct board *board, uint32_t process, uint32_t host, const char *why)
{
    const struct passage *passage = &board->net.passages[process];
    struct order order = {.serial = passage->serial, .to = passage->to};

    snprintf(order.why, sizeof(order.why), "%s", why);
    if (!board->net.gone[host])
        net_send(board, host, FRAME_ABORT, process, &order, sizeof(order));
}

/* The process stays where it is. */
static void call_off(struct board *board, uint32_t process, const char *why, bool it_lives)
{
    struct passage *passage = &board->net.passages[process];
    uint32_t destination = net_host_of_tile(board, passage->to);

    if (!transfer_is_moving(board, process))
        return;
    passage->step = PASSAGE_NONE;
    tell_aborted(board, process, destination, why);
    tell_aborted(board, process, passage->source, why);
    if (it_lives)
        release_held(board, process, passage->source);
    else
        relay_forget(&board->net.held[process]);
    if (!board->net.gone[passage->source])
        net_send(board, passage->source, FRAME_GO, process, NULL, 0);
    end_record(board, process, passage->to, why);
}

void transfer_owner_lost(struct board *board, uint32_t process)
{
    call_off(board, process, "the process has ended", false);
}

/* READY has come; who was to tell since when it runs there is gone, or who was to hear it, or tell the cost. */
static void end_gone(struct board *board, uint32_t process, uint32_t host)
{
    struct passage *passage = &board->net.passages[process];
    bool heard = passage->step == PASSAGE_TOLD;

    passage->step = PASSAGE_NONE;
    if (passage->source == host)
        end_record(board, process, passage->to, OLD_HOST_GONE);
    else if (!heard)
        tell_aborted(board, process, passage->source, "the destination's host is gone");
}

void transfer_host_gone(struct board *board, uint32_t host)
{
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        const struct passage *passage = &board->net.passages[process];
        bool to = net_host_of_tile(board, passage->to) == host;

        mirror_has_come(board, process); /* it runs here, so it is not lost with its source */
        if (passage->step == PASSAGE_NONE && passage->source == host && to) /* between two tiles of the host */
            end_record(board, process, passage->to, "its host is gone");
        if (passage->step == PASSAGE_NONE || (passage->source != host && !to))
            continue;
        if (passage->step == PASSAGE_GONE || passage->step == PASSAGE_TOLD)
            end_gone(board, process, host);
        else if (to)
            call_off(board, process, "the destination's host is gone", true);
        else
            call_off(board, process, "its host is gone", false);
    }
}

void transfer_has_come(struct board *board, uint32_t process)
{
    if (board->net.host == 0 && board->net.passages[process].step == PASSAGE_NONE)
        end_record(board, process, board->net.passages[process].to, OLD_HOST_GONE);
}

void transfer_ask(struct board *board, struct move *move)
{
    uint32_t source = net_host_of_tile(board, move->from), destination = net_host_of_tile(board, move->to);
    struct passage *passage = &board->net.passages[move->process];
    struct order order = {.to = move->to, .mode = move->mode};

    atomic_store(&move->step, MOVE_ELSEWHERE);
    order.serial = ++passage->serial;
    passage->to = (uint8_t)move->to;
    passage->source = (uint8_t)source;
    passage->step = source == destination ? PASSAGE_NONE : PASSAGE_ASKED;
    net_send(board, source, source == destination ? FRAME_MOVE : FRAME_GIVE, move->process, &order, sizeof(order));
}

void transfer_ended(struct board *board, const struct move *move)
{
    if (board->net.host == 0 && move->serial && board->net.passages[move->process].serial == move->serial)
        call_off(board, move->process, move->why, true);
}

/* The process has a new owner. */
static void commit(struct board *board, uint32_t process)
{
    struct passage *passage = &board->net.passages[process];
    struct location *location = &board->window->locations[process];
    uint32_t host = net_host_of_tile(board, passage->to);
    struct place place = {.state = PLACE_RUNNING, .slot = NO_SLOT, .tile = passage->to};

    if (host != 0 && window_place(board->window, process).state != PLACE_RUNNING) {
        call_off(board, process, "the process has ended", false);
        return;
    }
    passage->step = PASSAGE_GONE;
    if (host != 0)
        atomic_fetch_add(&location->moves, 1);
    net_send(board, passage->source, FRAME_COMMITTED, process, NULL, 0);
    if (passage->source != 0 && host != 0)
        window_commit(board->window, process, atomic_load(&location->word), place);
    release_held(board, process, host);
    net_send(board, host, FRAME_GO, process, NULL, 0);
}

static void take_cost(struct board *board, uint32_t process, const struct cost *cost)
{
    struct location *location = &board->window->locations[process];
    struct move *move = &board->window->moves[cost->to % TILE_MAX];
    struct place place = window_place(board->window, process);

    if (place.tile != cost->to && place.state == PLACE_RUNNING && !transfer_is_moving(board, process) &&
        !net_is_here(board, process) && net_host_of_tile(board, place.tile) == net_host_of_tile(board, cost->to)) {
        place.tile = (uint8_t)cost->to; /* between two tiles of its host */
        atomic_fetch_add(&location->moves, 1);
        window_commit(board->window, process, atomic_load(&location->word), place);
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

/* Frames of a move that the two hosts exchange, as they arrive where they are for. */
static void take_mirrored(struct board *board, const struct frame_head *head, const uint8_t *payload)
{
    uint32_t process = head->process;
    struct offer offer;
    struct want want;
    struct runs runs;

    switch (head->kind) {
    case FRAME_OFFER:
        if (head->size == sizeof(offer))
            mirror_offer(board, process, memcpy(&offer, payload, sizeof(offer)));
        break;
    case FRAME_WANT:
        if (head->size == sizeof(want))
            mirror_want(board, process, memcpy(&want, payload, sizeof(want)));
        break;
    case FRAME_RUNS:
        if (head->size == sizeof(runs))
            mirror_runs(board, process, memcpy(&runs, payload, sizeof(runs)));
        break;
    case FRAME_PAGES:
        mirror_pages(board, process, payload, head->size);
        break;
    case FRAME_PIECE:
        mirror_piece(board, process, payload, head->size);
        break;
    case FRAME_STATE:
        mirror_state(board, process, payload, head->size);
        break;
    default:
        break;
    }
}

/* The leader: from one of the two hosts to the other, while the move goes on. */
static void pass_on(struct board *board, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    struct passage *passage = &board->net.passages[head->process];
    uint32_t destination = net_host_of_tile(board, passage->to), to, step;
    bool is_answer = head->kind == FRAME_WANT || head->kind == FRAME_RUNS;

    if (head->kind == FRAME_RUNS ? passage->step != PASSAGE_GONE : !transfer_is_moving(board, head->process))
        return;
    if (from != (is_answer ? destination : passage->source))
        return;
    to = is_answer ? passage->source : destination;
    if (head->kind == FRAME_RUNS)
        passage->step = PASSAGE_TOLD;
    if (head->kind == FRAME_WANT && head->size == sizeof(struct want)) {
        memcpy(&step, payload + offsetof(struct want, step), sizeof(step));
        if (step == MOVE_RESERVED)
            passage->step = PASSAGE_HELD;
    }
    if (to == 0)
        take_mirrored(board, head, payload);
    else
        net_send(board, to, head->kind, head->process, payload, head->size);
}

static void refused(struct board *board, uint32_t process, const struct order *order)
{
    if (order->serial != board->net.passages[process].serial)
        return;
    if (transfer_is_moving(board, process))
        call_off(board, process, order->why, true);
    else
        end_record(board, process, order->to, order->why);
}

static void wish(struct board *board, uint32_t process, const struct order *order)
{
    char why[REASON_SIZE];
    int error = moves_ask(board, process, order->to, order->mode, why, sizeof(why));

    if (error < 0)
        moves_answer(board, process, error);
    else
        board->wished[order->to] = true;
}

/* To the leader alone. */
static void handle_leaders(struct board *board, uint32_t from, const struct frame_head *head, const uint8_t *payload,
                           uint32_t serial, const struct order *order)
{
    uint32_t process = head->process;
    const struct passage *passage = &board->net.passages[process];
    struct cost cost;

    switch (head->kind) {
    case FRAME_READY:
        if (transfer_is_moving(board, process) && serial == passage->serial &&
            from == net_host_of_tile(board, passage->to))
            commit(board, process);
        break;
    case FRAME_REFUSED:
        refused(board, process, order);
        break;
    case FRAME_MOVED:
        if (head->size == sizeof(cost) && serial == passage->serial)
            take_cost(board, process, memcpy(&cost, payload, sizeof(cost)));
        break;
    case FRAME_WISH:
        wish(board, process, order);
        break;
    default:
        if (serial == passage->serial)
            pass_on(board, from, head, payload);
    }
}

/* A follower moves its process between two of its tiles. */
static void move_here(struct board *board, uint32_t process, const struct order *order)
{
    char why[REASON_SIZE] = "there is no such tile here";

    if (order->to >= board->window->tile_count || !window_is_here(board->window, order->to) ||
        moves_ask(board, process, order->to, order->mode, why, sizeof(why)) < 0)
        mirror_refuse(board, process, order->serial, order->to, why);
    else
        board->window->moves[order->to].serial = order->serial;
}

void transfer_handle(struct board *board, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    uint32_t process = head->process, serial = 0;
    struct order order = {0};

    if (head->size >= sizeof(serial))
        memcpy(&serial, payload, sizeof(serial));
    if (head->size == sizeof(order))
        memcpy(&order, payload, sizeof(order));
    order.why[REASON_SIZE - 1] = 0;
    switch (head->kind) {
    case FRAME_START:
        mirror_start(board, process, payload, head->size);
        break;
    case FRAME_GIVE:
        mirror_give(board, process, &order);
        break;
    case FRAME_MOVE:
        move_here(board, process, &order);
        break;
    case FRAME_ANSWER:
        moves_answer(board, process, -(int)order.mode);
        break;
    case FRAME_GO:
        mirror_go(board, process);
        break;
    case FRAME_COMMITTED:
        mirror_committed(board, process);
        break;
    case FRAME_ABORT:
        mirror_abort(board, process, &order);
        break;
    default:
        if (board->net.host == 0)
            handle_leaders(board, from, head, payload, serial, &order);
        else
            take_mirrored(board, head, payload);
    }
}
