/* See outgoing_move.h. */
#include "outgoing_move.h"

#include <stdlib.h>
#include <string.h>

#include "../../shared/fault_injection.h"
#include "../../shared/slots.h"

#define FREEZE_MS 10000 /* for the other side to make progress */

/* Whether a move of the process is not over here: until ABORT has come, a source keeps it frozen. */
static bool is_leaving(const struct move_proxy *proxy, uint32_t process)
{
    for (uint32_t to = 0; to < proxy->shared->tile_count; to++)
        if (!record_is_unused(&proxy->shared->moves[to]) && proxy->shared->moves[to].process == process)
            return true;
    return false;
}

void outgoing_begin(struct move_proxy *proxy, uint32_t process, const struct order *order)
{
    struct shared_memory *shared = proxy->shared;
    struct place place = shared_place(shared, process);
    const struct user_area *area;
    struct offer offer;
    struct move *move;

    if (!net_is_here(proxy->net, process) || order->to >= shared->tile_count || shared_is_here(shared, order->to) ||
        !record_is_mode(order->mode)) {
        record_refuse(proxy, process, order->serial, order->to, "the process has ended");
        return;
    }
    if (!record_is_unused(&shared->moves[order->to]) || slots_is_in_hand(shared, order->to) ||
        is_leaving(proxy, process)) {
        record_refuse(proxy, process, order->serial, order->to, "its last move is not over");
        return;
    }
    if (router_is_behind(proxy->router) || router_count_bytes(&proxy->router->pending[process]) > STATE_PENDING_MAX) {
        record_refuse(proxy, process, order->serial, order->to,
                      "more messages are under way from or to its host than can be sent with it");
        return;
    }
    move = &shared->moves[order->to];
    record_begin(proxy, move, process, order->serial, place.tile, order->to, order->mode);
    move->slot = NO_SLOT;
    move->place = place_pack(place);
    atomic_store(&move->step, MOVE_ASKED);
    record_touch_endpoints(proxy);
    area = shared_area(shared, place.slot);
    offer = (struct offer){order->serial, place.tile, order->to, order->mode, area->text_end, area->rodata_end};
    net_send(proxy->net, 0, FRAME_OFFER, process, &offer, sizeof(offer));
}

void outgoing_want(struct move_proxy *proxy, uint32_t process, const struct want *want)
{
    struct move *move = record_find(proxy, process, want->serial, false);
    uint32_t step = move ? atomic_load(&move->step) : MOVE_NONE;

    if (step < MOVE_ASKED || step > MOVE_FROZEN || want->step < MOVE_TRACKING || want->step > MOVE_RESERVED ||
        want->wanted - atomic_load(&move->scanned) > 1 || want->allow - atomic_load(&move->sent) > 1 ||
        atomic_load(&move->sent) - want->taken > 1)
        return;
    record_peer_view(proxy, move)->since = shared_now();
    atomic_store(&move->wanted, want->wanted);
    atomic_store(&move->taken, want->taken);
    atomic_store(&move->allow, want->allow);
    if (want->step == MOVE_RESERVED && step < MOVE_RESERVED)
        router_close(proxy->router, process);
    if (step < want->step)
        record_change_step(proxy, move, step, want->step);
    else
        shared_ring(proxy->shared, move->from);
}

/* Frames with memory of the process are sent without a copy, past net_send(). */
static void send_iov(struct move_proxy *proxy, const struct move *move, enum frame_kind kind, const void *own,
                     size_t size, const struct iovec *parts, size_t count)
{
    uint32_t host = proxy->net->host == 0 ? net_host_of_tile(proxy->net, move->to) : 0;

    if (proxy->net->host == 0 && !coordinated_move_is_under_way(&proxy->coordinated[move->process]))
        return;
    channel_send_iov(net_channel(proxy->net, host), kind, move->process, host, own, size, parts, count);
}

static void send_pages(struct move_proxy *proxy, struct move *move)
{
    struct pages pages = {.serial = move->serial, .tracking = move->tracking};
    struct iovec parts[STATE_PARTS];
    const uint8_t *image = shared_image(proxy->shared, place_unpack(move->place).slot);

    pages.scanned = atomic_load(&move->scanned);
    memcpy(pages.written, move->written, sizeof(pages.written));
    record_peer_view(proxy, move)->scanned = pages.scanned;
    send_iov(proxy, move, FRAME_PAGES, &pages, sizeof(pages), parts, state_list_pages(pages.written, image, parts));
}

/* The process is frozen and sealed. */
static void send_state(struct move_proxy *proxy, struct move *move)
{
    size_t count, all;
    struct shared_memory *shared = proxy->shared;
    uint32_t slot = place_unpack(move->place).slot;
    struct iovec parts[STATE_PARTS];
    struct buffer buffer = {NULL, 0, 0};
    static struct process_state state;

    fault_point("host:give");
    memset(&state, 0, sizeof(state));
    state.serial = move->serial;
    state.to = move->to;
    state.mode = move->mode;
    state.tracking = move->tracking;
    memcpy(state.written, move->written, sizeof(state.written));
    router_announce_grants(proxy->router, move->process);
    router_flush(proxy->router); /* its messages precede it */
    record_set_snapshot(proxy, move->process, state_capture(proxy->router, move->process, &state, &buffer));
    count = state_list_memory(&state, shared_area(shared, slot), shared_image(shared, slot), parts);
    all = buffer.size;
    for (size_t i = 0; i < count; i++)
        all += parts[i].iov_len;
    if (all <= FRAME_MAX) {
        send_iov(proxy, move, FRAME_STATE, buffer.bytes, buffer.size, parts, count);
        fault_point("host:given");
    } else { /* too many parcels have come since outgoing_begin() */
        record_set_snapshot(proxy, move->process, NULL);
        record_abort(proxy, move, "more messages wait for it than can be sent with it");
    }
    free(buffer.bytes);
}

static void send_piece(struct move_proxy *proxy, struct move *move)
{
    struct piece piece = {move->serial, atomic_load(&move->sent)};
    struct iovec part = {move->piece, PAGE_SIZE};

    record_peer_view(proxy, move)->sent = piece.sent;
    send_iov(proxy, move, FRAME_PIECE, &piece, sizeof(piece), &part, 1);
}

void outgoing_serve(struct move_proxy *proxy, struct move *move)
{
    struct peer_view *peer_view = record_peer_view(proxy, move);
    uint32_t step = atomic_load(&move->step);
    bool ended = atomic_load(&proxy->shared->locations[move->process].word) != move->place;

    if (step == MOVE_FROZEN && !move->committed && !proxy->snapshots[move->process])
        send_state(proxy, move);
    else if (step == MOVE_FROZEN && !move->committed && atomic_load(&move->sent) != peer_view->sent)
        send_piece(proxy, move);
    else if (step == MOVE_TRACKING && atomic_load(&move->wanted) == atomic_load(&move->scanned) &&
             atomic_load(&move->scanned) != peer_view->scanned)
        send_pages(proxy, move);
    else if (step >= MOVE_ASKED && step < MOVE_FROZEN && ended)
        record_abort(proxy, move, "the process has ended");
    else if (step >= MOVE_ASKED && step < MOVE_FROZEN && shared_now() - peer_view->since > FREEZE_MS * 1000000ll)
        record_abort(proxy, move, "the other host did not answer, or the source did not freeze");
}

/* The tile that had it may have died meanwhile: the process has not. */
void outgoing_committed(struct move_proxy *proxy, uint32_t process)
{
    struct location *location = &proxy->shared->locations[process];
    const struct snapshot *snapshot = proxy->snapshots[process];
    struct place place = {.state = PLACE_RUNNING, .slot = NO_SLOT};
    struct move *move;

    if (!snapshot)
        return;
    place.tile = (uint8_t)snapshot->to;
    move = record_find(proxy, process, snapshot->serial, false);
    proxy->router->closed[process] = false;
    state_strip(proxy->router, process, snapshot);
    record_set_snapshot(proxy, process, NULL);
    proxy->mine[process] = false;
    location->why[0] = 0; /* the reason why its old tile died, perhaps */
    shared_commit(proxy->shared, process, atomic_load(&location->word), place);
    if (proxy->net->host != 0)
        atomic_fetch_add(&location->moves, 1);
    if (!move)
        return;
    move->committed = shared_now();
    shared_ring(proxy->shared, move->from);
}

/*
 * When the process resumed at the destination, in our clock. Two hosts with one clock (emulated hosts of one machine)
 * share its readings. With two clocks the result is an upper bound, as if the answer had taken no time: half a round
 * trip would be too little, as the STATE is a thousand times as large as the answer.
 */
void outgoing_runs(struct move_proxy *proxy, uint32_t process, const struct runs *runs)
{
    struct move *move = record_find(proxy, process, runs->serial, false);
    int64_t come = shared_now() - runs->told;

    if (!move || !move->committed || atomic_load(&move->step) != MOVE_FROZEN)
        return;
    move->at_most = !clock_is_shared(&proxy->net->clock, &runs->clock);
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

void outgoing_abort(struct move_proxy *proxy, uint32_t process, const struct order *order)
{
    const struct snapshot *snapshot = proxy->snapshots[process];
    struct move *move = record_find(proxy, process, order->serial, false);

    if (snapshot && snapshot->serial == order->serial)
        record_set_snapshot(proxy, process, NULL);
    if (move && move->committed) { /* it was there, and that host is gone: RUNS will not come */
        atomic_store(&move->first, move->committed);
        atomic_store(&move->all, move->committed);
        move->copied = move->committed;
        atomic_store(&move->step, MOVE_DONE);
    } else if (move) {
        record_abort(proxy, move, order->why);
    }
}
