/*
 * A move between hosts, as the boards of the two play it: each is the other side for its own tile, and writes into the
 * move's record here what the other side has written into its own (net.h tells the frames, moving.h the record).
 *
 * Invariant: at the source the board never swaps the location entry before COMMITTED; at the destination only the tile
 * swaps it for itself, once, and only the board against it, when the move is called off. Of the two one succeeds.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "../faults.h"
#include "../tracking.h"
#include "state.h"

#define FREEZE_MS 10000 /* for the other side to get on */

static bool is_departure(const struct board *board, const struct move *move)
{
    return move->serial && window_is_here(board->window, move->from) && !window_is_here(board->window, move->to);
}

static bool is_arrival(const struct board *board, const struct move *move)
{
    return move->serial && window_is_here(board->window, move->to) && !window_is_here(board->window, move->from);
}

static struct move *find_record(struct board *board, uint32_t process, uint32_t serial, bool arrival)
{
    for (uint32_t to = 0; to < board->window->tile_count; to++) {
        struct move *move = &board->window->moves[to];
        uint32_t step = atomic_load(&move->step);

        if (step != MOVE_NONE && step != MOVE_ELSEWHERE && move->process == process && move->serial == serial &&
            (arrival ? is_arrival(board, move) : is_departure(board, move)))
            return move;
    }
    return NULL;
}

static struct mirror *mirror_of(struct board *board, const struct move *move)
{
    return &board->net.mirrors[move->to];
}

static void change_step(struct board *board, struct move *move, uint32_t from, uint32_t to)
{
    atomic_compare_exchange_strong(&move->step, &from, to);
    window_ring(board->window, window_is_here(board->window, move->from) ? move->from : move->to);
}

static void spoil(struct board *board, struct move *move, const char *why)
{
    uint32_t step = atomic_load(&move->step);

    if (step < MOVE_ASKED || step > MOVE_FROZEN)
        return;
    snprintf(move->why, sizeof(move->why), "%s", why);
    change_step(board, move, step, MOVE_ABORTED);
}

void mirror_refuse(struct board *board, uint32_t process, uint32_t serial, uint32_t to, const char *why)
{
    struct order order = {.serial = serial, .to = to};

    snprintf(order.why, sizeof(order.why), "%s", why);
    net_send(board, 0, FRAME_REFUSED, process, &order, sizeof(order));
}

static void begin(struct board *board, struct move *move, uint32_t process, uint32_t serial, uint32_t from,
                  uint32_t to, uint32_t mode)
{
    window_clear_move(move);
    move->process = process;
    move->serial = serial;
    move->from = from;
    move->to = to;
    move->mode = mode;
    move->asked = window_now();
    *mirror_of(board, move) = (struct mirror){.since = move->asked};
}

static bool is_mode(uint32_t mode)
{
    return mode < MODE_COUNT && mode != MODE_HANDOFF;
}

static bool is_unused(const struct move *move)
{
    uint32_t step = atomic_load(&move->step);

    return step == MOVE_NONE || step == MOVE_ELSEWHERE;
}

/* A source that has not yet heard that its last move was called off has the process still frozen. */
static bool is_leaving(const struct board *board, uint32_t process)
{
    for (uint32_t to = 0; to < board->window->tile_count; to++)
        if (!is_unused(&board->window->moves[to]) && board->window->moves[to].process == process)
            return true;
    return false;
}

/* What is looked at in every endpoint while a process stands, in pages that nobody here may have touched yet. */
static void touch_endpoints(const struct board *board)
{
    const volatile struct endpoint *endpoints = board->window->endpoints;

    for (uint32_t process = 0; process < PROCESS_MAX; process++) {
        for (uint32_t port = 0; port < PORT_MAX; port++)
            (void)endpoints[process].ports[port].count;
        for (uint32_t portal = 0; portal < PORTAL_MAX; portal++)
            (void)endpoints[process].portals[portal].from;
        (void)endpoints[process].turn;
    }
}

/* The owner. */
void mirror_give(struct board *board, uint32_t process, const struct order *order)
{
    struct window *window = board->window;
    struct place place = window_place(window, process);
    const struct uarea *area;
    struct offer offer;
    struct move *move;

    if (!net_is_here(board, process) || order->to >= window->tile_count || window_is_here(window, order->to) ||
        !is_mode(order->mode)) {
        mirror_refuse(board, process, order->serial, order->to, "the process has ended");
        return;
    }
    if (!is_unused(&window->moves[order->to]) || moves_is_in_hand(board, order->to) || is_leaving(board, process)) {
        mirror_refuse(board, process, order->serial, order->to, "its last move is not over");
        return;
    }
    if (relay_is_behind(board) || relay_count_bytes(&board->net.pending[process]) > STATE_PENDING_MAX) {
        mirror_refuse(board, process, order->serial, order->to,
                      "more messages are under way from or to its host than can be sent with it");
        return;
    }
    move = &window->moves[order->to];
    begin(board, move, process, order->serial, place.tile, order->to, order->mode);
    move->slot = NO_SLOT;
    move->place = place_pack(place);
    atomic_store(&move->step, MOVE_ASKED);
    touch_endpoints(board);
    area = window_area(window, place.slot);
    offer = (struct offer){order->serial, place.tile, order->to, order->mode, area->text_end, area->rodata_end};
    net_send(board, 0, FRAME_OFFER, process, &offer, sizeof(offer));
}

static bool is_free(struct board *board, uint32_t tile)
{
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct place place = window_place(board->window, process);

        if (place.state == PLACE_RUNNING && place.tile == tile)
            return false;
    }
    return atomic_load(&board->window->tiles[tile].alive) && is_unused(&board->window->moves[tile]) &&
           !moves_is_in_hand(board, tile);
}

static bool is_image(const struct offer *offer)
{
    return offer->text_end && offer->text_end % PAGE_SIZE == 0 && offer->rodata_end % PAGE_SIZE == 0 &&
           offer->text_end <= offer->rodata_end && offer->rodata_end <= ARGUMENTS_OFFSET;
}

/* Page faults of the board now are none while the process stands. */
static void touch(struct board *board, uint32_t slot)
{
    madvise(window_image(board->window, slot), USER_SIZE, MADV_POPULATE_WRITE);
    madvise(window_area(board->window, slot), sizeof(struct uarea), MADV_POPULATE_WRITE);
}

/* The destination: the tile maps its user region by the bounds that are offered. */
void mirror_offer(struct board *board, uint32_t process, const struct offer *offer)
{
    struct window *window = board->window;
    struct arrival *arrival;
    struct move *move;
    uint32_t slot;

    if (offer->to >= window->tile_count || !window_is_here(window, offer->to) || offer->from >= window->tile_count ||
        window_is_here(window, offer->from) || !is_mode(offer->mode) || !is_image(offer) || !process ||
        net_is_here(board, process) || board->net.arriving[process] || !is_free(board, offer->to) ||
        !moves_reserve_slot(board, &slot)) {
        mirror_refuse(board, process, offer->serial, offer->to, "the tile has a process, or is dead");
        return;
    }
    if (relay_is_behind(board)) {
        mirror_refuse(board, process, offer->serial, offer->to,
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
    board->net.arriving[process] = arrival;
    move = &window->moves[offer->to];
    begin(board, move, process, offer->serial, offer->from, offer->to, offer->mode);
    move->slot = slot;
    move->place = arrival->place;
    touch(board, slot);
    touch_endpoints(board);
    window_area(window, slot)->text_end = offer->text_end;
    window_area(window, slot)->rodata_end = offer->rodata_end;
    change_step(board, move, atomic_load(&move->step), MOVE_ASKED);
}

/* The owner: no more is believed than the record's own rules allow. */
void mirror_want(struct board *board, uint32_t process, const struct want *want)
{
    struct move *move = find_record(board, process, want->serial, false);
    uint32_t step = move ? atomic_load(&move->step) : MOVE_NONE;

    if (step < MOVE_ASKED || step > MOVE_FROZEN || want->step < MOVE_TRACKING || want->step > MOVE_RESERVED ||
        want->wanted - atomic_load(&move->scanned) > 1 || want->allow - atomic_load(&move->sent) > 1 ||
        atomic_load(&move->sent) - want->taken > 1)
        return;
    mirror_of(board, move)->since = window_now();
    atomic_store(&move->wanted, want->wanted);
    atomic_store(&move->taken, want->taken);
    atomic_store(&move->allow, want->allow);
    if (want->step == MOVE_RESERVED && step < MOVE_RESERVED)
        relay_close(board, process);
    if (step < want->step)
        change_step(board, move, step, want->step);
    else
        window_ring(board->window, move->from);
}

/* The destination. */
void mirror_pages(struct board *board, uint32_t process, const uint8_t *payload, size_t size)
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
    move = find_record(board, process, pages.serial, true);
    if (!move || atomic_load(&move->step) != MOVE_TRACKING || size != at + count * PAGE_SIZE ||
        pages.scanned != atomic_load(&move->scanned) + 1 || pages.scanned != atomic_load(&move->wanted))
        return;
    image = window_image(board->window, move->slot);
    for (size_t page = 0; page < USER_SIZE / PAGE_SIZE; page++)
        if (pages.written[page / 64] >> page % 64 & 1) {
            memcpy(image + page * PAGE_SIZE, payload + at, PAGE_SIZE);
            at += PAGE_SIZE;
        }
    memcpy(move->written, pages.written, sizeof(move->written));
    move->tracking = pages.tracking % TRACKING_KINDS;
    atomic_store(&move->scanned, pages.scanned);
    window_ring(board->window, move->to);
}

/* The destination. */
void mirror_piece(struct board *board, uint32_t process, const uint8_t *payload, size_t size)
{
    struct piece piece;
    struct move *move;

    if (size != sizeof(piece) + PAGE_SIZE)
        return;
    memcpy(&piece, payload, sizeof(piece));
    move = find_record(board, process, piece.serial, true);
    if (!move || atomic_load(&move->step) != MOVE_FROZEN || piece.sent != atomic_load(&move->sent) + 1 ||
        piece.sent != atomic_load(&move->allow))
        return;
    memcpy(move->piece, payload + sizeof(piece), PAGE_SIZE);
    atomic_store(&move->sent, piece.sent);
    window_ring(board->window, move->to);
}

static void learn_facts(struct board *board, uint32_t process, const struct state *state)
{
    struct location *location = &board->window->locations[process];

    net_learn_facts(location, &state->facts);
    location->why[0] = 0;
    atomic_store(&location->end, 0);
}

/* The destination: from here on it is the tile's. */
void mirror_state(struct board *board, uint32_t process, const uint8_t *payload, size_t size)
{
    struct arrival *arrival = board->net.arriving[process];
    struct move *move = arrival ? find_record(board, process, arrival->serial, true) : NULL;
    const uint8_t *parcels;
    const char *wrong;

    if (!move || atomic_load(&move->step) != MOVE_RESERVED || arrival->has_state)
        return;
    move->frozen = window_now();
    fault_point("host:state");
    wrong = state_take(board, process, arrival->slot, arrival, payload, size, &arrival->state, &parcels);
    if (!wrong && (arrival->state.serial != arrival->serial || arrival->state.mode != move->mode))
        wrong = "it is of another move";
    if (!wrong)
        wrong = state_fill(board, process, arrival, parcels);
    if (wrong) {
        spoil(board, move, wrong);
        return;
    }
    learn_facts(board, process, &arrival->state);
    move->bytes = size;
    move->tracking = arrival->state.tracking % TRACKING_KINDS;
    memset(move->written, 0, sizeof(move->written));
    change_step(board, move, MOVE_RESERVED, MOVE_FROZEN);
}

/* The leader has already named us its owner. */
static void tell_lost(struct board *board, uint32_t process, const char *why)
{
    struct news news = {.state = PLACE_LOST};

    snprintf(news.why, sizeof(news.why), "it could not be started: %s", why);
    net_send(board, 0, FRAME_ENDED, process, &news, sizeof(news));
}

/* The owner of a process that is started: there is no move. */
void mirror_start(struct board *board, uint32_t process, const uint8_t *payload, size_t size)
{
    static struct arrival arrival;
    struct window *window = board->window;
    struct place place = {.state = PLACE_RUNNING};
    const char *wrong = "there are too many processes";
    uint64_t word = atomic_load(&window->locations[process].word);
    const uint8_t *parcels;
    uint32_t slot;

    memset(&arrival, 0, sizeof(arrival));
    if (!process || net_is_here(board, process) || board->net.arriving[process])
        wrong = "the process is there already";
    else if (moves_reserve_slot(board, &slot))
        wrong = state_take(board, process, slot, NULL, payload, size, &arrival.state, &parcels);
    if (!wrong && (arrival.state.mode != MODE_DIRECT || arrival.state.to >= window->tile_count ||
                   !window_is_here(window, arrival.state.to) || !is_free(board, arrival.state.to)))
        wrong = "the tile has a process, or is dead";
    if (!wrong)
        wrong = state_fill(board, process, &arrival, parcels);
    if (wrong) {
        tell_lost(board, process, wrong);
        return;
    }
    learn_facts(board, process, &arrival.state);
    place.slot = (uint8_t)slot;
    place.tile = (uint8_t)arrival.state.to;
    window_area(window, slot)->epoch = place_unpack(word).epoch + 1;
    window_commit(window, process, word, place);
    board->net.mine[process] = true;
    window_ring(window, place.tile);
    relay_open(board, process);
}

/* The owner's frames with memory go past net_send(), which would copy them. */
static void send_lent(struct board *board, const struct move *move, enum frame_kind kind, const void *own, size_t size,
                      const struct iovec *parts, size_t count)
{
    uint32_t host = board->net.host == 0 ? net_host_of_tile(board, move->to) : 0;

    if (board->net.host == 0 && !transfer_is_moving(board, move->process))
        return;
    link_send_lent(&board->net.links[host], kind, move->process, host, own, size, parts, count);
}

static void send_pages(struct board *board, struct move *move)
{
    struct pages pages = {.serial = move->serial, .tracking = move->tracking};
    struct iovec parts[STATE_PARTS];
    const uint8_t *image = window_image(board->window, place_unpack(move->place).slot);

    pages.scanned = atomic_load(&move->scanned);
    memcpy(pages.written, move->written, sizeof(pages.written));
    mirror_of(board, move)->scanned = pages.scanned;
    send_lent(board, move, FRAME_PAGES, &pages, sizeof(pages), parts, state_list_pages(pages.written, image, parts));
}

static void forget_given(struct board *board, uint32_t process)
{
    free(board->net.given[process]);
    board->net.given[process] = NULL;
}

/* The process is frozen and sealed. */
static void send_state(struct board *board, struct move *move)
{
    size_t count, all;
    struct window *window = board->window;
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
    relay_announce_leave(board, move->process);
    relay_flush(board); /* all it has said goes before it */
    state_capture(board, move->process, &state, &buffer);
    count = state_list_memory(&state, window_area(window, slot), window_image(window, slot), parts);
    all = buffer.size;
    for (size_t i = 0; i < count; i++)
        all += parts[i].iov_len;
    if (all <= FRAME_MAX) {
        send_lent(board, move, FRAME_STATE, buffer.bytes, buffer.size, parts, count);
        fault_point("host:given");
    } else { /* so much has come for it since it was asked */
        forget_given(board, move->process);
        spoil(board, move, "more messages wait for it than can be sent with it");
    }
    free(buffer.bytes);
}

static void send_piece(struct board *board, struct move *move)
{
    struct piece piece = {move->serial, atomic_load(&move->sent)};
    struct iovec part = {move->piece, PAGE_SIZE};

    mirror_of(board, move)->sent = piece.sent;
    send_lent(board, move, FRAME_PIECE, &piece, sizeof(piece), &part, 1);
}

static void serve_departure(struct board *board, struct move *move)
{
    struct mirror *mirror = mirror_of(board, move);
    uint32_t step = atomic_load(&move->step);
    bool ended = atomic_load(&board->window->locations[move->process].word) != move->place;

    if (step == MOVE_FROZEN && !move->committed && !board->net.given[move->process])
        send_state(board, move);
    else if (step == MOVE_FROZEN && !move->committed && atomic_load(&move->sent) != mirror->sent)
        send_piece(board, move);
    else if (step == MOVE_TRACKING && atomic_load(&move->wanted) == atomic_load(&move->scanned) &&
             atomic_load(&move->scanned) != mirror->scanned)
        send_pages(board, move);
    else if (step >= MOVE_ASKED && step < MOVE_FROZEN && ended)
        spoil(board, move, "the process has ended");
    else if (step >= MOVE_ASKED && step < MOVE_FROZEN && window_now() - mirror->since > FREEZE_MS * 1000000ll)
        spoil(board, move, "the other host did not answer, or the source did not freeze");
}

static void serve_arrival(struct board *board, struct move *move)
{
    struct mirror *mirror = mirror_of(board, move);
    uint32_t step = atomic_load(&move->step);
    struct want want = {
        .serial = move->serial,
        .step = step > MOVE_RESERVED ? MOVE_RESERVED : step,
        .wanted = atomic_load(&move->wanted),
        .allow = atomic_load(&move->allow),
        .taken = atomic_load(&move->taken),
    };

    mirror_has_come(board, move->process);
    if (step < MOVE_TRACKING || step > MOVE_FROZEN ||
        (want.step == mirror->step && want.wanted == mirror->wanted && want.allow == mirror->allow &&
         want.taken == mirror->taken))
        return;
    mirror->step = want.step;
    mirror->wanted = want.wanted;
    mirror->allow = want.allow;
    mirror->taken = want.taken;
    net_send(board, 0, FRAME_WANT, move->process, &want, sizeof(want));
}

void mirror_serve(struct board *board)
{
    for (uint32_t to = 0; to < board->window->tile_count; to++) {
        struct move *move = &board->window->moves[to];

        if (is_unused(move))
            continue;
        if (is_departure(board, move))
            serve_departure(board, move);
        else if (is_arrival(board, move))
            serve_arrival(board, move);
    }
}

/* Whether the tile has swapped the entry for itself. */
static bool is_taken(struct board *board, uint32_t process, uint64_t before, uint32_t tile)
{
    return atomic_load(&board->window->locations[process].word) != before &&
           window_place(board->window, process).tile == tile;
}

bool mirror_has_come(struct board *board, uint32_t process)
{
    struct arrival *arrival = board->net.arriving[process];
    uint32_t serial;

    if (!arrival || !arrival->has_state || !is_taken(board, process, arrival->place, arrival->tile))
        return false;
    if (arrival->told)
        return true;
    fault_point("host:come");
    arrival->told = true;
    serial = arrival->serial;
    board->net.mine[process] = true;
    net_send(board, 0, FRAME_READY, process, &serial, sizeof(serial)); /* of the leader: GO is said within */
    return true;
}

void mirror_go(struct board *board, uint32_t process)
{
    if (board->net.arriving[process] && !board->net.arriving[process]->told)
        return;
    free(board->net.arriving[process]); /* NULL of an owner whose move was called off */
    board->net.arriving[process] = NULL;
    relay_open(board, process);
}

/* The old owner. Its tile may have died meanwhile: the process has not. */
void mirror_committed(struct board *board, uint32_t process)
{
    struct location *location = &board->window->locations[process];
    const struct given *given = board->net.given[process];
    struct place place = {.state = PLACE_RUNNING, .slot = NO_SLOT};
    struct move *move;

    if (!given)
        return;
    place.tile = (uint8_t)given->to;
    move = find_record(board, process, given->serial, false);
    board->net.closed[process] = false;
    state_strip(board, process);
    forget_given(board, process);
    board->net.mine[process] = false;
    location->why[0] = 0; /* the death of its old tile is not its own */
    window_commit(board->window, process, atomic_load(&location->word), place);
    if (board->net.host != 0)
        atomic_fetch_add(&location->moves, 1);
    if (!move)
        return;
    move->committed = window_now();
    window_ring(board->window, move->from);
}

/*
 * The old owner: since when it runs there, on our clock. Where the two hosts have one clock, as emulated hosts of one
 * machine do, that is what the other has read on it. Where they have two, it is a bound: as if the answer had taken no
 * time. Half of the way there and back would be too little, as the STATE is a thousand times as large as the answer.
 */
void mirror_runs(struct board *board, uint32_t process, const struct runs *runs)
{
    struct move *move = find_record(board, process, runs->serial, false);
    int64_t come = window_now() - runs->told;

    if (!move || !move->committed || atomic_load(&move->step) != MOVE_FROZEN)
        return;
    move->at_most = !clock_is_shared(&board->net.clock, &runs->clock);
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

bool mirror_finish(struct board *board, struct move *move, bool aborted)
{
    struct place place = window_place(board->window, move->process), before = place_unpack(move->place);
    struct runs runs = {.serial = move->serial, .rounds = move->rounds, .bytes = move->bytes, .before = move->before};
    int64_t all = atomic_load(&move->all), first = atomic_load(&move->first);

    if (!is_arrival(board, move))
        return false;
    if (!is_taken(board, move->process, move->place, move->to))
        return !aborted;
    mirror_has_come(board, move->process);
    if (!all && place.state == PLACE_RUNNING && place.epoch == before.epoch + 1)
        return true;
    runs.copied = move->copied - move->frozen;
    runs.committed = move->committed - move->frozen;
    runs.first = first ? first - move->frozen : runs.committed;
    runs.all = all ? all - move->frozen : runs.first;
    runs.told = window_now() - move->frozen;
    runs.come = move->frozen;
    runs.clock = board->net.clock;
    move->serial = 0; /* of the leader, the record waits for MOVED now */
    atomic_store(&move->step, board->net.host == 0 ? MOVE_ELSEWHERE : MOVE_NONE);
    net_send(board, 0, FRAME_RUNS, move->process, &runs, sizeof(runs));
    transfer_has_come(board, move->process);
    return true;
}

/* The destination: our swap, or the tile's. What runs already is no process's: the leader has reported that lost. */
static void abort_arrival(struct board *board, uint32_t process, const char *why)
{
    struct arrival *arrival = board->net.arriving[process];
    struct move *move = find_record(board, process, arrival->serial, true);

    if (window_commit(board->window, process, arrival->place, place_unpack(arrival->place))) {
        if (arrival->has_state)
            state_empty(board, process, arrival);
        if (move)
            spoil(board, move, why);
    } else {
        names_end_process(board, process, 0, why);
    }
    free(arrival);
    board->net.arriving[process] = NULL;
    relay_open(board, process);
}

void mirror_abort(struct board *board, uint32_t process, const struct order *order)
{
    struct arrival *arrival = board->net.arriving[process];
    struct given *given = board->net.given[process];
    struct move *move = find_record(board, process, order->serial, false);

    if (given && given->serial == order->serial)
        forget_given(board, process);
    if (arrival && arrival->serial == order->serial)
        abort_arrival(board, process, order->why);
    if (move && move->committed) { /* it is there, and that host is gone: nobody will tell since when it ran */
        atomic_store(&move->first, move->committed);
        atomic_store(&move->all, move->committed);
        move->copied = move->committed;
        atomic_store(&move->step, MOVE_DONE);
    } else if (move) {
        spoil(board, move, order->why);
    }
}
