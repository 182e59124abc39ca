/* See arrival.h. */
#include "arrival.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../faults.h"
#include "../tracking.h"
#include "processes.h"
#include "slots.h"

static bool is_free(struct mirror *mirror, uint32_t tile)
{
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct place place = window_place(mirror->window, process);

        if (place.state == PLACE_RUNNING && place.tile == tile)
            return false;
    }
    return atomic_load(&mirror->window->tiles[tile].alive) && record_is_unused(&mirror->window->moves[tile]) &&
           !slots_is_in_hand(mirror->window, tile);
}

static bool is_image(const struct offer *offer)
{
    return offer->text_end && offer->text_end % PAGE_SIZE == 0 && offer->rodata_end % PAGE_SIZE == 0 &&
           offer->text_end <= offer->rodata_end && offer->rodata_end <= ARGUMENTS_OFFSET;
}

/* No page faults of the board while the process is frozen. */
static void touch(struct mirror *mirror, uint32_t slot)
{
    madvise(window_image(mirror->window, slot), USER_SIZE, MADV_POPULATE_WRITE);
    madvise(window_area(mirror->window, slot), sizeof(struct uarea), MADV_POPULATE_WRITE);
}

/* The tile maps its user region by the bounds that are offered, before the process is frozen. */
void arrival_offer(struct mirror *mirror, uint32_t process, const struct offer *offer)
{
    struct window *window = mirror->window;
    struct arrival *arrival;
    struct move *move;
    uint32_t slot;

    if (offer->to >= window->tile_count || !window_is_here(window, offer->to) || offer->from >= window->tile_count ||
        window_is_here(window, offer->from) || !record_is_mode(offer->mode) || !is_image(offer) || !process ||
        net_is_here(mirror->net, process) || mirror->arriving[process] || !is_free(mirror, offer->to) ||
        !slots_reserve(mirror->window, &slot)) {
        record_refuse(mirror, process, offer->serial, offer->to, "the tile has a process, or is dead");
        return;
    }
    if (relay_is_behind(mirror->relay)) {
        record_refuse(mirror, process, offer->serial, offer->to,
                      "more messages are under way from its new host than can be sent before it");
        return;
    }
    arrival = calloc(1, sizeof(*arrival));
    if (!arrival)
        abort();
    arrival->serial = offer->serial;
    arrival->slot = (uint8_t)slot;
    arrival->tile = (uint8_t)offer->to;
    arrival->place = atomic_load(&window->locations[process].word);
    arrival->text_end = offer->text_end;
    arrival->rodata_end = offer->rodata_end;
    record_set_arrival(mirror, process, arrival);
    move = &window->moves[offer->to];
    record_begin(mirror, move, process, offer->serial, offer->from, offer->to, offer->mode);
    move->slot = slot;
    move->place = arrival->place;
    touch(mirror, slot);
    record_touch_endpoints(mirror);
    window_area(window, slot)->text_end = offer->text_end;
    window_area(window, slot)->rodata_end = offer->rodata_end;
    record_change_step(mirror, move, atomic_load(&move->step), MOVE_ASKED);
}

void arrival_pages(struct mirror *mirror, uint32_t process, const uint8_t *payload, size_t size)
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
    move = record_find(mirror, process, pages.serial, true);
    if (!move || atomic_load(&move->step) != MOVE_TRACKING || size != at + count * PAGE_SIZE ||
        pages.scanned != atomic_load(&move->scanned) + 1 || pages.scanned != atomic_load(&move->wanted))
        return;
    image = window_image(mirror->window, move->slot);
    for (size_t page = 0; page < USER_SIZE / PAGE_SIZE; page++)
        if (pages.written[page / 64] >> page % 64 & 1) {
            memcpy(image + page * PAGE_SIZE, payload + at, PAGE_SIZE);
            at += PAGE_SIZE;
        }
    memcpy(move->written, pages.written, sizeof(move->written));
    move->tracking = pages.tracking % TRACKING_KINDS;
    atomic_store(&move->scanned, pages.scanned);
    window_ring(mirror->window, move->to);
}

void arrival_piece(struct mirror *mirror, uint32_t process, const uint8_t *payload, size_t size)
{
    struct piece piece;
    struct move *move;

    if (size != sizeof(piece) + PAGE_SIZE)
        return;
    memcpy(&piece, payload, sizeof(piece));
    move = record_find(mirror, process, piece.serial, true);
    if (!move || atomic_load(&move->step) != MOVE_FROZEN || piece.sent != atomic_load(&move->sent) + 1 ||
        piece.sent != atomic_load(&move->allow))
        return;
    memcpy(move->piece, payload + sizeof(piece), PAGE_SIZE);
    atomic_store(&move->sent, piece.sent);
    window_ring(mirror->window, move->to);
}

static void learn_facts(struct mirror *mirror, uint32_t process, const struct state *state)
{
    struct location *location = &mirror->window->locations[process];

    processes_learn(location, &state->facts);
    location->why[0] = 0;
    atomic_store(&location->end, 0);
}

/* When it is valid, the tile checks and commits it next. */
void arrival_state(struct mirror *mirror, uint32_t process, const uint8_t *payload, size_t size)
{
    struct arrival *arrival = mirror->arriving[process];
    struct move *move = arrival ? record_find(mirror, process, arrival->serial, true) : NULL;
    const uint8_t *parcels;
    const char *wrong;

    if (!move || atomic_load(&move->step) != MOVE_RESERVED || arrival->has_state)
        return;
    move->frozen = window_now();
    fault_point("host:state");
    wrong = state_unpack(mirror->window, process, arrival->slot, arrival, payload, size, &arrival->state, &parcels);
    if (!wrong && (arrival->state.serial != arrival->serial || arrival->state.mode != move->mode))
        wrong = "it is of another move";
    if (!wrong) {
        wrong = state_install(mirror->relay, process, arrival, parcels);
        relay_mark(mirror->relay, process, TRANSIT_LOADED, arrival->has_state);
    }
    if (wrong) {
        record_abort(mirror, move, wrong);
        return;
    }
    learn_facts(mirror, process, &arrival->state);
    move->bytes = size;
    move->tracking = arrival->state.tracking % TRACKING_KINDS;
    memset(move->written, 0, sizeof(move->written));
    record_change_step(mirror, move, MOVE_RESERVED, MOVE_FROZEN);
}

/* The leader has named this host the owner already, so it must learn that there is no process. */
static void tell_lost(struct mirror *mirror, uint32_t process, const char *why)
{
    struct process_info info = {.state = PLACE_LOST};

    snprintf(info.why, sizeof(info.why), "it could not be started: %s", why);
    net_send(mirror->net, 0, FRAME_ENDED, process, &info, sizeof(info));
}

void arrival_start(struct mirror *mirror, uint32_t process, const uint8_t *payload, size_t size)
{
    static struct arrival arrival;
    struct window *window = mirror->window;
    struct place place = {.state = PLACE_RUNNING};
    const char *wrong = "there are too many processes";
    uint64_t word = atomic_load(&window->locations[process].word);
    const uint8_t *parcels;
    uint32_t slot;

    memset(&arrival, 0, sizeof(arrival));
    if (!process || net_is_here(mirror->net, process) || mirror->arriving[process])
        wrong = "the process is there already";
    else if (slots_reserve(mirror->window, &slot))
        wrong = state_unpack(mirror->window, process, slot, NULL, payload, size, &arrival.state, &parcels);
    if (!wrong && (arrival.state.mode != MODE_DIRECT || arrival.state.to >= window->tile_count ||
                   !window_is_here(window, arrival.state.to) || !is_free(mirror, arrival.state.to)))
        wrong = "the tile has a process, or is dead";
    if (!wrong)
        wrong = state_install(mirror->relay, process, &arrival, parcels);
    if (wrong) {
        tell_lost(mirror, process, wrong);
        return;
    }
    learn_facts(mirror, process, &arrival.state);
    place.slot = (uint8_t)slot;
    place.tile = (uint8_t)arrival.state.to;
    window_area(window, slot)->epoch = place_unpack(word).epoch + 1;
    window_commit(window, process, word, place);
    mirror->mine[process] = true;
    window_ring(window, place.tile);
    relay_open(mirror->relay, process);
}

void arrival_serve(struct mirror *mirror, struct move *move)
{
    struct mirrored *mirrored = record_mirrored(mirror, move);
    uint32_t step = atomic_load(&move->step);
    struct want want = {
        .serial = move->serial,
        .step = step > MOVE_RESERVED ? MOVE_RESERVED : step,
        .wanted = atomic_load(&move->wanted),
        .allow = atomic_load(&move->allow),
        .taken = atomic_load(&move->taken),
    };

    arrival_has_come(mirror, move->process);
    if (step < MOVE_TRACKING || step > MOVE_FROZEN ||
        (want.step == mirrored->step && want.wanted == mirrored->wanted && want.allow == mirrored->allow &&
         want.taken == mirrored->taken))
        return;
    mirrored->step = want.step;
    mirrored->wanted = want.wanted;
    mirrored->allow = want.allow;
    mirrored->taken = want.taken;
    net_send(mirror->net, 0, FRAME_WANT, move->process, &want, sizeof(want));
}

/* Whether the tile has swapped the entry for itself. */
static bool has_swapped(struct mirror *mirror, uint32_t process, uint64_t before, uint32_t tile)
{
    return atomic_load(&mirror->window->locations[process].word) != before &&
           window_place(mirror->window, process).tile == tile;
}

bool arrival_has_come(struct mirror *mirror, uint32_t process)
{
    struct arrival *arrival = mirror->arriving[process];
    uint32_t serial;

    if (!arrival || !arrival->has_state || !has_swapped(mirror, process, arrival->place, arrival->tile))
        return false;
    if (arrival->told)
        return true;
    fault_point("host:come");
    arrival->told = true;
    serial = arrival->serial;
    mirror->mine[process] = true;
    net_send(mirror->net, 0, FRAME_READY, process, &serial, sizeof(serial)); /* at the leader, GO is handled within */
    return true;
}

void arrival_go(struct mirror *mirror, uint32_t process)
{
    if (mirror->arriving[process] && !mirror->arriving[process]->told)
        return;
    record_set_arrival(mirror, process, NULL); /* there is none at an owner whose move was called off */
    relay_open(mirror->relay, process);
}

enum arrival_end arrival_finish(struct mirror *mirror, struct move *move, bool aborted)
{
    struct place place = window_place(mirror->window, move->process), before = place_unpack(move->place);
    struct runs runs = {.serial = move->serial, .rounds = move->rounds, .bytes = move->bytes, .before = move->before};
    int64_t all = atomic_load(&move->all), first = atomic_load(&move->first);

    if (!record_is_arrival(mirror, move))
        return ARRIVAL_NOT;
    if (!has_swapped(mirror, move->process, move->place, move->to))
        return aborted ? ARRIVAL_NOT : ARRIVAL_WAITS;
    arrival_has_come(mirror, move->process);
    if (!all && place.state == PLACE_RUNNING && place.epoch == before.epoch + 1)
        return ARRIVAL_WAITS;
    runs.copied = move->copied - move->frozen;
    runs.committed = move->committed - move->frozen;
    runs.first = first ? first - move->frozen : runs.committed;
    runs.all = all ? all - move->frozen : runs.first;
    runs.told = window_now() - move->frozen;
    runs.come = move->frozen;
    runs.clock = mirror->net->clock;
    move->serial = 0; /* at the leader, the record waits for MOVED now */
    atomic_store(&move->step, mirror->net->host == 0 ? MOVE_ELSEWHERE : MOVE_NONE);
    net_send(mirror->net, 0, FRAME_RUNS, move->process, &runs, sizeof(runs));
    return ARRIVAL_TOLD;
}

/* Either our swap of the location entry succeeds, or the tile's did: then the leader has reported the process lost. */
static void abort_arrival(struct mirror *mirror, uint32_t process, const char *why)
{
    struct arrival *arrival = mirror->arriving[process];
    struct move *move = record_find(mirror, process, arrival->serial, true);

    if (window_commit(mirror->window, process, arrival->place, place_unpack(arrival->place))) {
        if (arrival->has_state)
            state_revert(mirror->relay, process, arrival);
        if (move)
            record_abort(mirror, move, why);
    } else {
        processes_end(mirror->net, process, 0, why);
    }
    record_set_arrival(mirror, process, NULL);
    relay_open(mirror->relay, process);
}

void arrival_abort(struct mirror *mirror, uint32_t process, const struct order *order)
{
    const struct arrival *arrival = mirror->arriving[process];

    if (arrival && arrival->serial == order->serial)
        abort_arrival(mirror, process, order->why);
}
