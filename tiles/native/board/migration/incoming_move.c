/* See incoming_move.h. */
#include "incoming_move.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../../shared/fault_injection.h"
#include "../../shared/slots.h"
#include "../hosts/processes.h"

static bool is_free(struct move_proxy *proxy, uint32_t tile)
{
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct place place = shared_place(proxy->shared, process);

        if (place.state == PLACE_RUNNING && place.tile == tile)
            return false;
    }
    return atomic_load(&proxy->shared->tiles[tile].alive) && record_is_unused(&proxy->shared->moves[tile]) &&
           !slots_is_in_hand(proxy->shared, tile);
}

static bool is_image(const struct offer *offer)
{
    return offer->text_end && offer->text_end % PAGE_SIZE == 0 && offer->rodata_end % PAGE_SIZE == 0 &&
           offer->text_end <= offer->rodata_end && offer->rodata_end <= ARGUMENTS_OFFSET;
}

/* No page faults of the board while the process is frozen. */
static void touch(struct move_proxy *proxy, uint32_t slot)
{
    madvise(shared_image(proxy->shared, slot), USER_SIZE, MADV_POPULATE_WRITE);
    madvise(shared_area(proxy->shared, slot), sizeof(struct user_area), MADV_POPULATE_WRITE);
}

/* The tile maps its user region by the bounds that are offered, before the process is frozen. */
void incoming_offer(struct move_proxy *proxy, uint32_t process, const struct offer *offer)
{
    struct shared_memory *shared = proxy->shared;
    struct incoming_move *incoming;
    struct move *move;
    uint32_t slot;

    if (offer->to >= shared->tile_count || !shared_is_here(shared, offer->to) || offer->from >= shared->tile_count ||
        shared_is_here(shared, offer->from) || !record_is_mode(offer->mode) || !is_image(offer) || !process ||
        net_is_here(proxy->net, process) || proxy->incoming[process] || !is_free(proxy, offer->to) ||
        !slots_reserve(proxy->shared, &slot)) {
        record_refuse(proxy, process, offer->serial, offer->to, "the tile has a process, or is dead");
        return;
    }
    if (router_is_behind(proxy->router)) {
        record_refuse(proxy, process, offer->serial, offer->to,
                      "more messages are under way from its new host than can be sent before it");
        return;
    }
    incoming = calloc(1, sizeof(*incoming));
    if (!incoming)
        abort();
    incoming->serial = offer->serial;
    incoming->slot = (uint8_t)slot;
    incoming->tile = (uint8_t)offer->to;
    incoming->place = atomic_load(&shared->locations[process].word);
    incoming->text_end = offer->text_end;
    incoming->rodata_end = offer->rodata_end;
    record_set_incoming(proxy, process, incoming);
    move = &shared->moves[offer->to];
    record_begin(proxy, move, process, offer->serial, offer->from, offer->to, offer->mode);
    move->slot = slot;
    move->place = incoming->place;
    touch(proxy, slot);
    record_touch_endpoints(proxy);
    shared_area(shared, slot)->text_end = offer->text_end;
    shared_area(shared, slot)->rodata_end = offer->rodata_end;
    record_change_step(proxy, move, atomic_load(&move->step), MOVE_ASKED);
}

void incoming_pages(struct move_proxy *proxy, uint32_t process, const uint8_t *payload, size_t size)
{
    struct pages pages;
    struct move *move;
    size_t at = sizeof(pages), count = 0;
    uint8_t *image;

    if (size < sizeof(pages))
        return;
    memcpy(&pages, payload, sizeof(pages));
    for (int word = 0; word < WRITTEN_WORDS; word++)
        count += (size_t)__builtin_popcountll(pages.written[word]);
    move = record_find(proxy, process, pages.serial, true);
    if (!move || atomic_load(&move->step) != MOVE_TRACKING || size != at + count * PAGE_SIZE ||
        pages.scanned != atomic_load(&move->scanned) + 1 || pages.scanned != atomic_load(&move->wanted))
        return;
    image = shared_image(proxy->shared, move->slot);
    for (size_t page = 0; page < USER_SIZE / PAGE_SIZE; page++)
        if (pages.written[page / 64] >> page % 64 & 1) {
            memcpy(image + page * PAGE_SIZE, payload + at, PAGE_SIZE);
            at += PAGE_SIZE;
        }
    memcpy(move->written, pages.written, sizeof(move->written));
    move->tracking = pages.tracking % TRACKING_KINDS;
    atomic_store(&move->scanned, pages.scanned);
    shared_ring(proxy->shared, move->to);
}

void incoming_piece(struct move_proxy *proxy, uint32_t process, const uint8_t *payload, size_t size)
{
    struct piece piece;
    struct move *move;

    if (size != sizeof(piece) + PAGE_SIZE)
        return;
    memcpy(&piece, payload, sizeof(piece));
    move = record_find(proxy, process, piece.serial, true);
    if (!move || atomic_load(&move->step) != MOVE_FROZEN || piece.sent != atomic_load(&move->sent) + 1 ||
        piece.sent != atomic_load(&move->allow))
        return;
    memcpy(move->piece, payload + sizeof(piece), PAGE_SIZE);
    atomic_store(&move->sent, piece.sent);
    shared_ring(proxy->shared, move->to);
}

static void learn_facts(struct move_proxy *proxy, uint32_t process, const struct process_state *state)
{
    struct location *location = &proxy->shared->locations[process];

    processes_learn(location, &state->facts);
    location->why[0] = 0;
    atomic_store(&location->end, 0);
}

/* When it is valid, the tile checks and commits it next. */
void incoming_state(struct move_proxy *proxy, uint32_t process, const uint8_t *payload, size_t size)
{
    struct incoming_move *incoming = proxy->incoming[process];
    struct move *move = incoming ? record_find(proxy, process, incoming->serial, true) : NULL;
    const uint8_t *parcels;
    const char *wrong;

    if (!move || atomic_load(&move->step) != MOVE_RESERVED || incoming->has_state)
        return;
    move->frozen = shared_now();
    fault_point("host:state");
    wrong = state_unpack(proxy->shared, process, incoming->slot, incoming, payload, size, &incoming->state, &parcels);
    if (!wrong && (incoming->state.serial != incoming->serial || incoming->state.mode != move->mode))
        wrong = "it is of another move";
    if (!wrong) {
        wrong = state_install(proxy->router, process, incoming, parcels);
        router_mark(proxy->router, process, TRANSIT_LOADED, incoming->has_state);
    }
    if (wrong) {
        record_abort(proxy, move, wrong);
        return;
    }
    learn_facts(proxy, process, &incoming->state);
    move->bytes = size;
    move->tracking = incoming->state.tracking % TRACKING_KINDS;
    memset(move->written, 0, sizeof(move->written));
    record_change_step(proxy, move, MOVE_RESERVED, MOVE_FROZEN);
}

/* The leader has named this host the owner already, so it must learn that there is no process. */
static void tell_lost(struct move_proxy *proxy, uint32_t process, const char *why)
{
    struct process_info info = {.state = PLACE_LOST};

    snprintf(info.why, sizeof(info.why), "it could not be started: %s", why);
    net_send(proxy->net, 0, FRAME_ENDED, process, &info, sizeof(info));
}

void incoming_start(struct move_proxy *proxy, uint32_t process, const uint8_t *payload, size_t size)
{
    static struct incoming_move incoming;
    struct shared_memory *shared = proxy->shared;
    struct place place = {.state = PLACE_RUNNING};
    const char *wrong = "there are too many processes";
    uint64_t word = atomic_load(&shared->locations[process].word);
    const uint8_t *parcels;
    uint32_t slot;

    memset(&incoming, 0, sizeof(incoming));
    if (!process || net_is_here(proxy->net, process) || proxy->incoming[process])
        wrong = "the process is there already";
    else if (slots_reserve(proxy->shared, &slot))
        wrong = state_unpack(proxy->shared, process, slot, NULL, payload, size, &incoming.state, &parcels);
    if (!wrong && (incoming.state.mode != MODE_DIRECT || incoming.state.to >= shared->tile_count ||
                   !shared_is_here(shared, incoming.state.to) || !is_free(proxy, incoming.state.to)))
        wrong = "the tile has a process, or is dead";
    if (!wrong)
        wrong = state_install(proxy->router, process, &incoming, parcels);
    if (wrong) {
        tell_lost(proxy, process, wrong);
        return;
    }
    learn_facts(proxy, process, &incoming.state);
    place.slot = (uint8_t)slot;
    place.tile = (uint8_t)incoming.state.to;
    shared_area(shared, slot)->epoch = place_unpack(word).epoch + 1;
    shared_commit(shared, process, word, place);
    proxy->mine[process] = true;
    shared_ring(shared, place.tile);
    router_open(proxy->router, process);
}

void incoming_serve(struct move_proxy *proxy, struct move *move)
{
    struct peer_view *peer_view = record_peer_view(proxy, move);
    uint32_t step = atomic_load(&move->step);
    struct want want = {
        .serial = move->serial,
        .step = step > MOVE_RESERVED ? MOVE_RESERVED : step,
        .wanted = atomic_load(&move->wanted),
        .allow = atomic_load(&move->allow),
        .taken = atomic_load(&move->taken),
    };

    incoming_has_come(proxy, move->process);
    if (step < MOVE_TRACKING || step > MOVE_FROZEN ||
        (want.step == peer_view->step && want.wanted == peer_view->wanted && want.allow == peer_view->allow &&
         want.taken == peer_view->taken))
        return;
    peer_view->step = want.step;
    peer_view->wanted = want.wanted;
    peer_view->allow = want.allow;
    peer_view->taken = want.taken;
    net_send(proxy->net, 0, FRAME_WANT, move->process, &want, sizeof(want));
}

/* Whether the tile has swapped the entry for itself. */
static bool has_swapped(struct move_proxy *proxy, uint32_t process, uint64_t before, uint32_t tile)
{
    return atomic_load(&proxy->shared->locations[process].word) != before &&
           shared_place(proxy->shared, process).tile == tile;
}

bool incoming_has_come(struct move_proxy *proxy, uint32_t process)
{
    struct incoming_move *incoming = proxy->incoming[process];
    uint32_t serial;

    if (!incoming || !incoming->has_state || !has_swapped(proxy, process, incoming->place, incoming->tile))
        return false;
    if (incoming->told)
        return true;
    fault_point("host:come");
    incoming->told = true;
    serial = incoming->serial;
    proxy->mine[process] = true;
    net_send(proxy->net, 0, FRAME_READY, process, &serial, sizeof(serial)); /* at the leader, GO is handled within */
    return true;
}

void incoming_go(struct move_proxy *proxy, uint32_t process)
{
    if (proxy->incoming[process] && !proxy->incoming[process]->told)
        return;
    record_set_incoming(proxy, process, NULL); /* there is none at an owner whose move was called off */
    router_open(proxy->router, process);
}

enum incoming_end incoming_finish(struct move_proxy *proxy, struct move *move, bool aborted)
{
    struct place place = shared_place(proxy->shared, move->process), before = place_unpack(move->place);
    struct runs runs = {.serial = move->serial, .rounds = move->rounds, .bytes = move->bytes, .before = move->before};
    int64_t all = atomic_load(&move->all), first = atomic_load(&move->first);

    if (!record_is_incoming(proxy, move))
        return INCOMING_NOT;
    if (!has_swapped(proxy, move->process, move->place, move->to))
        return aborted ? INCOMING_NOT : INCOMING_WAITS;
    incoming_has_come(proxy, move->process);
    if (!all && place.state == PLACE_RUNNING && place.epoch == before.epoch + 1)
        return INCOMING_WAITS;
    runs.copied = move->copied - move->frozen;
    runs.committed = move->committed - move->frozen;
    runs.first = first ? first - move->frozen : runs.committed;
    runs.all = all ? all - move->frozen : runs.first;
    runs.told = shared_now() - move->frozen;
    runs.come = move->frozen;
    runs.clock = proxy->net->clock;
    move->serial = 0; /* at the leader, the record waits for MOVED now */
    atomic_store(&move->step, proxy->net->host == 0 ? MOVE_ELSEWHERE : MOVE_NONE);
    net_send(proxy->net, 0, FRAME_RUNS, move->process, &runs, sizeof(runs));
    return INCOMING_TOLD;
}

/* Either our swap of the location entry succeeds, or the tile's did: then the leader has reported the process lost. */
static void abort_incoming(struct move_proxy *proxy, uint32_t process, const char *why)
{
    struct incoming_move *incoming = proxy->incoming[process];
    struct move *move = record_find(proxy, process, incoming->serial, true);

    if (shared_commit(proxy->shared, process, incoming->place, place_unpack(incoming->place))) {
        if (incoming->has_state)
            state_revert(proxy->router, process, incoming);
        if (move)
            record_abort(proxy, move, why);
    } else {
        processes_end(proxy->net, process, 0, why);
    }
    record_set_incoming(proxy, process, NULL);
    router_open(proxy->router, process);
}

void incoming_abort(struct move_proxy *proxy, uint32_t process, const struct order *order)
{
    const struct incoming_move *incoming = proxy->incoming[process];

    if (incoming && incoming->serial == order->serial)
        abort_incoming(proxy, process, order->why);
}
