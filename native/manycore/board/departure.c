/* See departure.h. */
#include "departure.h"

#include <stdlib.h>
#include <string.h>

#include "../faults.h"
#include "../tracking.h"
#include "slots.h"

#define FREEZE_MS 10000 /* for the other side to make progress */

/* Whether a move of the process is not over here: until ABORT has come, a source keeps it frozen. */
static bool is_leaving(const struct mirror *mirror, uint32_t process)
{
    for (uint32_t to = 0; to < mirror->window->tile_count; to++)
        if (!record_is_unused(&mirror->window->moves[to]) && mirror->window->moves[to].process == process)
            return true;
    return false;
}

void departure_begin(struct mirror *mirror, uint32_t process, const struct order *order)
{
    struct window *window = mirror->window;
    struct place place = window_place(window, process);
    const struct uarea *area;
    struct offer offer;
    struct move *move;

    if (!net_is_here(mirror->net, process) || order->to >= window->tile_count || window_is_here(window, order->to) ||
        !record_is_mode(order->mode)) {
        record_refuse(mirror, process, order->serial, order->to, "the process has ended");
        return;
    }
    if (!record_is_unused(&window->moves[order->to]) || slots_is_in_hand(window, order->to) ||
        is_leaving(mirror, process)) {
        record_refuse(mirror, process, order->serial, order->to, "its last move is not over");
        return;
    }
    if (relay_is_behind(mirror->relay) || relay_count_bytes(&mirror->relay->pending[process]) > STATE_PENDING_MAX) {
        record_refuse(mirror, process, order->serial, order->to,
                      "more messages are under way from or to its host than can be sent with it");
        return;
    }
    move = &window->moves[order->to];
    record_begin(mirror, move, process, order->serial, place.tile, order->to, order->mode);
    move->slot = NO_SLOT;
    move->place = place_pack(place);
    atomic_store(&move->step, MOVE_ASKED);
    record_touch_endpoints(mirror);
    area = window_area(window, place.slot);
    offer = (struct offer){order->serial, place.tile, order->to, order->mode, area->text_end, area->rodata_end};
    net_send(mirror->net, 0, FRAME_OFFER, process, &offer, sizeof(offer));
}

void departure_want(struct mirror *mirror, uint32_t process, const struct want *want)
{
    struct move *move = record_find(mirror, process, want->serial, false);
    uint32_t step = move ? atomic_load(&move->step) : MOVE_NONE;

    if (step < MOVE_ASKED || step > MOVE_FROZEN || want->step < MOVE_TRACKING || want->step > MOVE_RESERVED ||
        want->wanted - atomic_load(&move->scanned) > 1 || want->allow - atomic_load(&move->sent) > 1 ||
        atomic_load(&move->sent) - want->taken > 1)
        return;
    record_mirrored(mirror, move)->since = window_now();
    atomic_store(&move->wanted, want->wanted);
    atomic_store(&move->taken, want->taken);
    atomic_store(&move->allow, want->allow);
    if (want->step == MOVE_RESERVED && step < MOVE_RESERVED)
        relay_close(mirror->relay, process);
    if (step < want->step)
        record_change_step(mirror, move, step, want->step);
    else
        window_ring(mirror->window, move->from);
}

/* Frames with memory of the process are sent without a copy, past net_send(). */
static void send_iov(struct mirror *mirror, const struct move *move, enum frame_kind kind, const void *own, size_t size,
                      const struct iovec *parts, size_t count)
{
    uint32_t host = mirror->net->host == 0 ? net_host_of_tile(mirror->net, move->to) : 0;

    if (mirror->net->host == 0 && !passage_is_moving(&mirror->passages[move->process]))
        return;
    link_send_iov(net_link(mirror->net, host), kind, move->process, host, own, size, parts, count);
}

static void send_pages(struct mirror *mirror, struct move *move)
{
    struct pages pages = {.serial = move->serial, .tracking = move->tracking};
    struct iovec parts[STATE_PARTS];
    const uint8_t *image = window_image(mirror->window, place_unpack(move->place).slot);

    pages.scanned = atomic_load(&move->scanned);
    memcpy(pages.written, move->written, sizeof(pages.written));
    record_mirrored(mirror, move)->scanned = pages.scanned;
    send_iov(mirror, move, FRAME_PAGES, &pages, sizeof(pages), parts, state_list_pages(pages.written, image, parts));
}

/* The process is frozen and sealed. */
static void send_state(struct mirror *mirror, struct move *move)
{
    size_t count, all;
    struct window *window = mirror->window;
    uint32_t slot = place_unpack(move->place).slot;
    struct iovec parts[STATE_PARTS];
    struct buffer buffer = {NULL, 0, 0};
    static struct state state;

    fault_point("host:give");
    memset(&state, 0, sizeof(state));
    state.serial = move->serial;
    state.to = move->to;
    state.mode = move->mode;
    state.tracking = move->tracking;
    memcpy(state.written, move->written, sizeof(state.written));
    relay_announce_grants(mirror->relay, move->process);
    relay_flush(mirror->relay); /* its messages precede it */
    record_set_snapshot(mirror, move->process, state_capture(mirror->relay, move->process, &state, &buffer));
    count = state_list_memory(&state, window_area(window, slot), window_image(window, slot), parts);
    all = buffer.size;
    for (size_t i = 0; i < count; i++)
        all += parts[i].iov_len;
    if (all <= FRAME_MAX) {
        send_iov(mirror, move, FRAME_STATE, buffer.bytes, buffer.size, parts, count);
        fault_point("host:given");
    } else { /* too many parcels have come since departure_begin() */
        record_set_snapshot(mirror, move->process, NULL);
        record_abort(mirror, move, "more messages wait for it than can be sent with it");
    }
    free(buffer.bytes);
}

static void send_piece(struct mirror *mirror, struct move *move)
{
    struct piece piece = {move->serial, atomic_load(&move->sent)};
    struct iovec part = {move->piece, PAGE_SIZE};

    record_mirrored(mirror, move)->sent = piece.sent;
    send_iov(mirror, move, FRAME_PIECE, &piece, sizeof(piece), &part, 1);
}

void departure_serve(struct mirror *mirror, struct move *move)
{
    struct mirrored *mirrored = record_mirrored(mirror, move);
    uint32_t step = atomic_load(&move->step);
    bool ended = atomic_load(&mirror->window->locations[move->process].word) != move->place;

    if (step == MOVE_FROZEN && !move->committed && !mirror->snapshots[move->process])
        send_state(mirror, move);
    else if (step == MOVE_FROZEN && !move->committed && atomic_load(&move->sent) != mirrored->sent)
        send_piece(mirror, move);
    else if (step == MOVE_TRACKING && atomic_load(&move->wanted) == atomic_load(&move->scanned) &&
             atomic_load(&move->scanned) != mirrored->scanned)
        send_pages(mirror, move);
    else if (step >= MOVE_ASKED && step < MOVE_FROZEN && ended)
        record_abort(mirror, move, "the process has ended");
    else if (step >= MOVE_ASKED && step < MOVE_FROZEN && window_now() - mirrored->since > FREEZE_MS * 1000000ll)
        record_abort(mirror, move, "the other host did not answer, or the source did not freeze");
}

/* The tile that had it may have died meanwhile: the process has not. */
void departure_committed(struct mirror *mirror, uint32_t process)
{
    struct location *location = &mirror->window->locations[process];
    const struct snapshot *snapshot = mirror->snapshots[process];
    struct place place = {.state = PLACE_RUNNING, .slot = NO_SLOT};
    struct move *move;

    if (!snapshot)
        return;
    place.tile = (uint8_t)snapshot->to;
    move = record_find(mirror, process, snapshot->serial, false);
    mirror->relay->closed[process] = false;
    state_strip(mirror->relay, process, snapshot);
    record_set_snapshot(mirror, process, NULL);
    mirror->mine[process] = false;
    location->why[0] = 0; /* the reason why its old tile died, perhaps */
    window_commit(mirror->window, process, atomic_load(&location->word), place);
    if (mirror->net->host != 0)
        atomic_fetch_add(&location->moves, 1);
    if (!move)
        return;
    move->committed = window_now();
    window_ring(mirror->window, move->from);
}

/*
 * When the process resumed at the destination, in our clock. Two hosts with one clock (emulated hosts of one machine)
 * share its readings. With two clocks the result is an upper bound, as if the answer had taken no time: half a round
 * trip would be too little, as the STATE is a thousand times as large as the answer.
 */
void departure_runs(struct mirror *mirror, uint32_t process, const struct runs *runs)
{
    struct move *move = record_find(mirror, process, runs->serial, false);
    int64_t come = window_now() - runs->told;

    if (!move || !move->committed || atomic_load(&move->step) != MOVE_FROZEN)
        return;
    move->at_most = !clock_is_shared(&mirror->net->clock, &runs->clock);
    if (!move->at_most && runs->come < come)
        come = runs->come;
    if (come < move->frozen)
        come = move->frozen;
    move->bytes = runs->bytes;
    move->before = runs->before;
    move->rounds = runs->rounds;
    move->copied = come + runs->copied;
    move->committed = come + runs->committed;
    atomic_store(&move->first, come + runs->first);
    atomic_store(&move->all, come + runs->all);
    atomic_store(&move->step, MOVE_DONE);
}

void departure_abort(struct mirror *mirror, uint32_t process, const struct order *order)
{
    const struct snapshot *snapshot = mirror->snapshots[process];
    struct move *move = record_find(mirror, process, order->serial, false);

    if (snapshot && snapshot->serial == order->serial)
        record_set_snapshot(mirror, process, NULL);
    if (move && move->committed) { /* it was there, and that host is gone: RUNS will not come */
        atomic_store(&move->first, move->committed);
        atomic_store(&move->all, move->committed);
        move->copied = move->committed;
        atomic_store(&move->step, MOVE_DONE);
    } else if (move) {
        record_abort(mirror, move, order->why);
    }
}
