/*
 * Processes on their way between hosts; the protocol is in net.h. What travels is a STATE:
 *
 *   struct state | User Area | used pages, as uarea_list_extents() lists them | parcels: struct parcel, bytes, ...
 *
 * The parcels are what the process has not read yet, what it is allowed to send, and the pieces in its portals; at the
 * destination they go the way of parcels that come later. A receiver checks every length and the whole User Area.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "board.h"

#define FREEZE_MS 10000 /* for the source to freeze */
#define NOBODY 255      /* origin of a parcel for which nobody has given credit */

struct state_portal {
    uint32_t from, ticket;
    uint64_t expected;
};

struct state {
    uint32_t to; /* tile */
    uint32_t parcels_size;
    struct news facts;
    uint32_t turn, signals[SYNC_MAX][PROCESS_MAX];
    struct state_portal portals[PORTAL_MAX];
    struct operation operations[OPERATION_MAX];
};

/* What was in the endpoint when it was sent: that goes when the move commits, what came later stays as a way out. */
struct given {
    uint32_t mails[PORT_MAX], pieces[PORTAL_MAX], signals[SYNC_MAX][PROCESS_MAX];
};

struct buffer {
    uint8_t *bytes;
    size_t size, room;
};

static void append(struct buffer *buffer, const void *bytes, size_t size)
{
    if (buffer->size + size > buffer->room) {
        buffer->room = 2 * buffer->room + size;
        buffer->bytes = realloc(buffer->bytes, buffer->room);
        if (!buffer->bytes)
            abort();
    }
    memcpy(buffer->bytes + buffer->size, bytes, size);
    buffer->size += size;
}

static void append_parcel(struct buffer *buffer, const struct parcel *parcel, const void *bytes)
{
    append(buffer, parcel, sizeof(*parcel));
    append(buffer, bytes, parcel->size);
}

static void capture_queues(struct endpoint *endpoint, struct state *state, struct given *given, struct buffer *parcels)
{
    for (uint32_t number = 0; number < PORT_MAX; number++) {
        const struct port *port = &endpoint->ports[number];

        given->mails[number] = port->count;
        for (uint32_t i = 0; i < port->count; i++) {
            const struct mail *mail = &port->mails[(port->first + i) % MAIL_DEPTH];
            struct parcel parcel = {PARCEL_MAIL, (uint8_t)mail->from, (uint8_t)number, NOBODY, 0, mail->size, 0};

            append_parcel(parcels, &parcel, mail->bytes);
        }
    }
    for (uint32_t number = 0; number < PORTAL_MAX; number++) {
        const struct portal *portal = &endpoint->portals[number];

        given->pieces[number] = portal->expected ? portal->count : 0;
        state->portals[number] = (struct state_portal){portal->from, portal->ticket, portal->expected};
        for (uint32_t i = 0; i < given->pieces[number]; i++) {
            uint32_t at = (portal->first + i) % PIECE_DEPTH;
            struct parcel parcel = {PARCEL_PIECE, (uint8_t)portal->from, (uint8_t)number, NOBODY, 0, portal->sizes[at], 0};

            append_parcel(parcels, &parcel, portal->pieces[at]);
        }
    }
}

/* What others allow the process to send goes with it. */
static void capture_leave(struct board *board, uint32_t process, struct buffer *parcels)
{
    for (uint32_t other = 1; other < PROCESS_MAX; other++)
        for (uint32_t port = 0; port < PORTAL_MAX; port++) {
            const struct portal *portal = &board->window->endpoints[other].portals[port];
            struct parcel parcel = {PARCEL_ALLOW, (uint8_t)other, (uint8_t)port, NOBODY, portal->ticket, 0,
                                    portal->allowed};

            if (portal->from == process && portal->allowed && !portal->fresh)
                append(parcels, &parcel, sizeof(parcel));
        }
}

static void describe_facts(const struct location *location, struct news *facts)
{
    memset(facts, 0, sizeof(*facts));
    facts->state = PLACE_RUNNING;
    facts->moves = atomic_load(&location->moves);
    facts->rank = location->rank;
    facts->ranks = location->ranks;
    memcpy(facts->members, location->members, sizeof(facts->members));
    memcpy(facts->program, location->program, sizeof(facts->program));
}

static struct buffer pack(struct state *state, const struct uarea *area, const uint8_t *image,
                          const struct buffer *parcels)
{
    struct extent extents[THREAD_MAX + 2];
    int count = uarea_list_extents(area, extents);
    struct buffer buffer = {NULL, 0, 0};

    state->parcels_size = (uint32_t)parcels->size;
    append(&buffer, state, sizeof(*state));
    append(&buffer, area, sizeof(*area));
    for (int i = 0; i < count; i++)
        append(&buffer, image + extents[i].offset, extents[i].size);
    if (parcels->size)
        append(&buffer, parcels->bytes, parcels->size);
    return buffer;
}

/* The process is frozen and sealed. */
static void send_state(struct board *board, struct move *move)
{
    struct window *window = board->window;
    struct endpoint *endpoint = &window->endpoints[move->process];
    struct place place = place_unpack(move->place);
    struct given *given = calloc(1, sizeof(*given));
    struct buffer parcels = {NULL, 0, 0}, buffer;
    static struct state state;

    if (!given)
        abort();
    memset(&state, 0, sizeof(state));
    state.to = move->to;
    describe_facts(&window->locations[move->process], &state.facts);
    relay_announce_leave(board, move->process);
    relay_flush(board); /* all it has said goes before it */
    endpoint_lock(endpoint);
    capture_queues(endpoint, &state, given, &parcels);
    memcpy(given->signals, endpoint->signals, sizeof(given->signals));
    memcpy(state.signals, endpoint->signals, sizeof(state.signals));
    memcpy(state.operations, endpoint->operations, sizeof(state.operations));
    state.turn = endpoint->turn;
    endpoint_unlock(endpoint);
    for (const struct kept *kept = board->net.pending[move->process].first; kept; kept = kept->next)
        append_parcel(&parcels, &kept->parcel, kept->bytes);
    capture_leave(board, move->process, &parcels);
    buffer = pack(&state, window_area(window, place.slot), window_image(window, place.slot), &parcels);
    board->net.given[move->process] = given;
    move->bytes = buffer.size;
    move->copied = window_now();
    net_send(board, 0, FRAME_STATE, move->process, buffer.bytes, buffer.size);
    free(buffer.bytes);
    free(parcels.bytes);
}

void transfer_start(struct board *board, uint32_t process, uint32_t tile, const struct uarea *area,
                    const uint8_t *image)
{
    const struct buffer none = {NULL, 0, 0};
    static struct state state;
    struct buffer buffer;

    memset(&state, 0, sizeof(state));
    state.to = tile;
    describe_facts(&board->window->locations[process], &state.facts);
    buffer = pack(&state, area, image, &none);
    net_send(board, net_host_of_tile(board, tile), FRAME_START, process, buffer.bytes, buffer.size);
    free(buffer.bytes);
}

static void refuse(struct board *board, uint32_t process, uint32_t to, const char *why)
{
    struct order order = {.to = to};

    snprintf(order.why, sizeof(order.why), "%s", why);
    net_send(board, 0, FRAME_REFUSED, process, &order, sizeof(order));
}

/* The leader: what it kept goes where the process is now. */
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

/* The leader: the process stays where it is. */
static void call_off(struct board *board, uint32_t process, const char *why, bool it_lives)
{
    struct net *net = &board->net;
    uint32_t to = net->next_tile[process], owner = net_host_of_tile(board, window_place(board->window, process).tile);
    struct order order = {.to = to};

    if (!net->moving[process])
        return;
    net->moving[process] = false;
    snprintf(order.why, sizeof(order.why), "%s", why);
    if (!net->gone[net_host_of_tile(board, to)])
        net_send(board, net_host_of_tile(board, to), FRAME_ABORT, process, &order, sizeof(order));
    if (!net->gone[owner])
        net_send(board, owner, FRAME_ABORT, process, &order, sizeof(order));
    if (it_lives)
        release_held(board, process, owner);
    else
        relay_forget(&net->held[process]);
    end_record(board, process, to, why);
}

void transfer_owner_lost(struct board *board, uint32_t process)
{
    call_off(board, process, "the process has ended", false);
}

void transfer_host_gone(struct board *board, uint32_t host)
{
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        if (!board->net.moving[process])
            continue;
        if (net_host_of_tile(board, window_place(board->window, process).tile) == host)
            call_off(board, process, "its host is gone", false);
        else if (net_host_of_tile(board, board->net.next_tile[process]) == host)
            call_off(board, process, "the destination's host is gone", true);
    }
}

void transfer_ask(struct board *board, struct move *move)
{
    uint32_t source = net_host_of_tile(board, move->from), destination = net_host_of_tile(board, move->to);
    struct order order = {.to = move->to, .mode = move->mode};

    atomic_store(&move->step, MOVE_ELSEWHERE);
    board->net.moving[move->process] = source != destination;
    board->net.next_tile[move->process] = (uint8_t)move->to;
    net_send(board, source, source == destination ? FRAME_MOVE : FRAME_GIVE, move->process, &order, sizeof(order));
}

/* The owner: the board is the destination for the source tile. */
static void give(struct board *board, uint32_t process, const struct order *order)
{
    struct window *window = board->window;
    struct place place = window_place(window, process);
    struct move *move;

    if (!net_is_here(board, process) || order->to >= window->tile_count) {
        refuse(board, process, order->to, "the process is not there");
        return;
    }
    move = &window->moves[order->to];
    window_clear_move(move);
    move->process = process;
    move->from = place.tile;
    move->to = order->to;
    move->mode = MODE_DIRECT;
    move->slot = NO_SLOT;
    move->place = place_pack(place);
    move->asked = window_now();
    atomic_store(&move->step, MOVE_RESERVED);
    window_ring(window, place.tile);
}

static void abort_give(struct board *board, struct move *move, const char *why)
{
    uint32_t step = atomic_load(&move->step);

    if (step != MOVE_RESERVED && step != MOVE_FROZEN)
        return;
    snprintf(move->why, sizeof(move->why), "%s", why);
    atomic_compare_exchange_strong(&move->step, &step, MOVE_ABORTED);
    window_ring(board->window, move->from);
}

void transfer_serve(struct board *board)
{
    for (uint32_t to = 0; to < board->window->tile_count; to++) {
        struct move *move = &board->window->moves[to];
        uint32_t step = atomic_load(&move->step);

        if (net_host_of_tile(board, to) == board->net.host)
            continue;
        if (step == MOVE_FROZEN && !board->net.given[move->process])
            send_state(board, move);
        else if (step == MOVE_RESERVED && atomic_load(&board->window->locations[move->process].word) != move->place)
            abort_give(board, move, "the process has ended");
        else if (step == MOVE_RESERVED && window_now() - move->asked > FREEZE_MS * 1000000ll)
            abort_give(board, move, "the source did not freeze");
    }
}

void transfer_give_ended(struct board *board, const struct move *move)
{
    if (board->net.hosts > 1 && board->net.host == 0 && board->net.next_tile[move->process] == move->to)
        call_off(board, move->process, move->why, true);
}

/* The old owner: what was sent goes; what is left is a way out. */
static void strip(struct board *board, uint32_t process)
{
    struct endpoint *endpoint = &board->window->endpoints[process];
    struct given *given = board->net.given[process];
    uint32_t waiting;

    endpoint_lock(endpoint);
    for (uint32_t port = 0; port < PORT_MAX; port++) {
        endpoint->ports[port].first = (endpoint->ports[port].first + given->mails[port]) % MAIL_DEPTH;
        endpoint->ports[port].count -= given->mails[port];
    }
    for (uint32_t number = 0; number < PORTAL_MAX; number++) {
        struct portal *portal = &endpoint->portals[number];

        portal->first = (portal->first + given->pieces[number]) % PIECE_DEPTH;
        portal->count -= given->pieces[number];
        portal->expected = portal->allowed;
        for (uint32_t i = 0; i < portal->count; i++)
            portal->expected += portal->sizes[(portal->first + i) % PIECE_DEPTH];
        portal->fresh = false;
    }
    for (uint32_t sync = 0; sync < SYNC_MAX; sync++)
        for (uint32_t from = 0; from < PROCESS_MAX; from++)
            endpoint->signals[sync][from] -= given->signals[sync][from];
    memset(endpoint->operations, 0, sizeof(endpoint->operations));
    endpoint->behind = 0;
    waiting = endpoint->waiting;
    endpoint->waiting = 0;
    endpoint_unlock(endpoint);
    relay_forget(&board->net.pending[process]);
    for (uint32_t other = 1; other < PROCESS_MAX; other++)
        for (uint32_t number = 0; number < PORTAL_MAX; number++) {
            struct portal *portal = &board->window->endpoints[other].portals[number];

            if (portal->from != process || portal->fresh)
                continue;
            endpoint_lock(&board->window->endpoints[other]);
            portal->allowed = 0;
            if (!net_is_here(board, other))
                portal->expected = 0; /* its pieces have been flushed */
            endpoint_unlock(&board->window->endpoints[other]);
        }
    window_ring_processes(board->window, waiting);
}

static struct move *find_give(struct board *board, uint32_t process)
{
    for (uint32_t to = 0; to < board->window->tile_count; to++) {
        struct move *move = &board->window->moves[to];

        if (move->process == process && net_host_of_tile(board, to) != board->net.host &&
            (atomic_load(&move->step) == MOVE_RESERVED || atomic_load(&move->step) == MOVE_FROZEN))
            return move;
    }
    return NULL;
}

static void forget_given(struct board *board, uint32_t process)
{
    free(board->net.given[process]);
    board->net.given[process] = NULL;
}

static void committed(struct board *board, uint32_t process)
{
    struct location *location = &board->window->locations[process];
    struct move *move = find_give(board, process);
    struct place place = {.state = PLACE_RUNNING, .slot = NO_SLOT};

    if (!move || !board->net.given[process])
        return;
    strip(board, process);
    forget_given(board, process);
    board->net.mine[process] = false;
    place.tile = (uint8_t)move->to;
    location->why[0] = 0; /* the death of its old tile, after the commit, is not its own */
    window_commit(board->window, process, atomic_load(&location->word), place);
    if (board->net.host != 0)
        atomic_fetch_add(&location->moves, 1);
    move->committed = window_now();
    atomic_store(&move->first, move->committed);
    atomic_store(&move->all, move->committed);
    atomic_store(&move->step, MOVE_DONE);
    window_ring(board->window, move->from);
}

/* Of a STATE: its parts. Returns NULL, or what is wrong with it. */
static const char *take_apart(const uint8_t *payload, size_t size, struct state *state, struct uarea *area,
                              uint8_t *image, const struct window *window, uint32_t process, size_t *parcels_at)
{
    struct extent extents[THREAD_MAX + 2];
    size_t at = sizeof(*state) + sizeof(*area);
    const char *wrong;
    int count;

    if (size < at)
        return "its state is cut off";
    memcpy(state, payload, sizeof(*state));
    memcpy(area, payload + sizeof(*state), sizeof(*area));
    wrong = uarea_check(area, process, window->xfeatures, window->xsize);
    if (wrong)
        return wrong;
    count = uarea_list_extents(area, extents);
    for (int i = 0; i < count; at += extents[i++].size) {
        if (size - at < extents[i].size)
            return "its pages are cut off";
        memcpy(image + extents[i].offset, payload + at, extents[i].size);
    }
    if (size - at != state->parcels_size)
        return "its messages are cut off";
    for (int i = 0; i < OPERATION_MAX; i++) {
        const struct operation *operation = &state->operations[i];

        if (operation->state != OPERATION_FREE &&
            (operation->kind > START_PORTAL_RECEIVE || operation->process >= PROCESS_MAX ||
             operation->port >= (operation->kind <= START_MAIL_RECEIVE ? PORT_MAX : PORTAL_MAX) ||
             operation->offset > USER_SIZE || operation->size > USER_SIZE - operation->offset ||
             operation->done > operation->size ||
             ((operation->kind == START_MAIL_RECEIVE || operation->kind == START_PORTAL_RECEIVE) &&
              operation->offset < area->rodata_end)))
            return "an operation of it is impossible";
    }
    *parcels_at = at;
    return NULL;
}

/* The parcels of a STATE wait here for the process. Returns NULL, or what is wrong with them. */
static const char *take_parcels(struct board *board, uint32_t process, const uint8_t *bytes, size_t size)
{
    struct parcel parcel;

    for (size_t at = 0; at < size; at += sizeof(parcel) + parcel.size) {
        if (size - at < sizeof(parcel))
            return "its messages are cut off";
        memcpy(&parcel, bytes + at, sizeof(parcel));
        if (!relay_is_valid(&parcel) || parcel.size > size - at - sizeof(parcel))
            return "a message to it is impossible";
        relay_deliver(board, process, &parcel, bytes + at + sizeof(parcel));
    }
    return NULL;
}

static bool is_free(struct board *board, uint32_t tile)
{
    uint32_t step = atomic_load(&board->window->moves[tile].step);

    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct place place = window_place(board->window, process);

        if (place.state == PLACE_RUNNING && place.tile == tile)
            return false;
    }
    return atomic_load(&board->window->tiles[tile].alive) && (step == MOVE_NONE || step == MOVE_ELSEWHERE);
}

/* Returns NULL, or why the process cannot run here. */
static const char *take_state(struct board *board, uint32_t process, const uint8_t *payload, size_t size)
{
    struct window *window = board->window;
    static struct state state;
    const char *wrong;
    size_t parcels_at;
    uint32_t slot;

    if (net_is_here(board, process) || board->net.arriving[process])
        return "the process is there already";
    if (!moves_reserve_slot(board, &slot))
        return "there are too many processes";
    wrong = take_apart(payload, size, &state, window_area(window, slot), window_image(window, slot), window, process,
                       &parcels_at);
    if (!wrong && (state.to >= window->tile_count || net_host_of_tile(board, state.to) != board->net.host ||
                   !is_free(board, state.to)))
        wrong = "the tile has a process, or is dead";
    if (wrong)
        return wrong;
    endpoint_lock(&window->endpoints[process]);
    window->endpoints[process].behind = ~0u;
    endpoint_unlock(&window->endpoints[process]);
    relay_flush(board); /* what our tiles have said to it so far goes before what they say from now on */
    relay_forget(&board->net.pending[process]);
    wrong = take_parcels(board, process, payload + parcels_at, state.parcels_size);
    if (wrong) {
        relay_forget(&board->net.pending[process]);
        relay_open(board, process);
        return wrong;
    }
    board->net.arriving[process] = malloc(sizeof(state));
    if (!board->net.arriving[process])
        abort();
    memcpy(board->net.arriving[process], &state, sizeof(state));
    board->net.arriving_slot[process] = (uint8_t)slot;
    return NULL;
}

/* The process asked for the move itself: it has been done. */
static void finish_wishes(struct uarea *area)
{
    for (int slot = 0; slot < THREAD_MAX; slot++) {
        struct thread *thread = &area->threads[slot];

        if (!(area->used >> slot & 1) || thread->state != THREAD_WAITING || thread->wait != WAIT_MOVE)
            continue;
        thread->context.rip += GATE_CALL_SIZE;
        thread->context.rax = 0;
        uarea_make_ready(area, slot);
    }
}

static void fill_endpoint(struct board *board, uint32_t process, const struct state *state)
{
    struct endpoint *endpoint = &board->window->endpoints[process];

    endpoint_lock(endpoint);
    for (uint32_t number = 0; number < PORTAL_MAX; number++) {
        const struct state_portal *from = &state->portals[number];
        struct portal *portal = &endpoint->portals[number];
        bool same = portal->from == from->from && portal->ticket == from->ticket && net_is_here(board, from->from % PROCESS_MAX);

        portal->allowed = same && from->expected ? portal->allowed : 0;
        portal->from = from->from % PROCESS_MAX;
        portal->ticket = from->ticket;
        portal->expected = from->expected;
        portal->first = portal->count = 0;
        portal->fresh = false;
    }
    for (uint32_t sync = 0; sync < SYNC_MAX; sync++)
        for (uint32_t from = 0; from < PROCESS_MAX; from++)
            endpoint->signals[sync][from] += state->signals[sync][from];
    memcpy(endpoint->operations, state->operations, sizeof(endpoint->operations));
    endpoint->turn = state->turn;
    endpoint_unlock(endpoint);
}

/* It is ours: it has come, or was started here. */
static void go(struct board *board, uint32_t process, bool moved)
{
    struct net *net = &board->net;
    struct location *location = &board->window->locations[process];
    const struct state *state = (const struct state *)net->arriving[process];
    struct place place = {.state = PLACE_RUNNING, .slot = net->arriving_slot[process]};
    uint64_t word = atomic_load(&location->word);
    struct uarea *area;

    if (!state)
        return;
    fill_endpoint(board, process, state);
    net_learn_facts(location, &state->facts);
    location->why[0] = 0;
    atomic_store(&location->end, 0);
    area = window_area(board->window, place.slot);
    finish_wishes(area);
    area->epoch = place_unpack(word).epoch + 1;
    place.tile = (uint8_t)state->to;
    atomic_fetch_add(&location->moves, moved);
    free(net->arriving[process]);
    net->arriving[process] = NULL;
    window_commit(board->window, process, word, place);
    net->mine[process] = true;
    window_ring(board->window, place.tile);
    relay_open(board, process);
}

/* The leader: the process has a new owner. */
static void commit(struct board *board, uint32_t process)
{
    struct net *net = &board->net;
    uint32_t to = net->next_tile[process], host = net_host_of_tile(board, to);
    uint32_t owner = net_host_of_tile(board, window_place(board->window, process).tile);
    struct location *location = &board->window->locations[process];
    struct place place = {.state = PLACE_RUNNING, .slot = NO_SLOT, .tile = (uint8_t)to};

    if (window_place(board->window, process).state != PLACE_RUNNING) {
        call_off(board, process, "the process has ended", false);
        return;
    }
    net->moving[process] = false;
    if (host != 0)
        atomic_fetch_add(&location->moves, 1);
    net_send(board, owner, FRAME_COMMITTED, process, NULL, 0);
    if (owner != 0 && host != 0)
        window_commit(board->window, process, atomic_load(&location->word), place);
    release_held(board, process, host);
    net_send(board, host, FRAME_GO, process, NULL, 0);
}

static void take_cost(struct board *board, uint32_t process, const struct cost *cost)
{
    struct location *location = &board->window->locations[process];
    struct move *move = &board->window->moves[cost->to % TILE_MAX];
    struct place place = window_place(board->window, process);

    if (place.tile != cost->to && place.state == PLACE_RUNNING && !board->net.moving[process] &&
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
    move->asked = 0;
    move->freezing = cost->prepare;
    move->frozen = move->freezing + cost->freezing;
    move->copied = move->frozen + cost->copying;
    move->committed = move->copied + cost->committing;
    move->first = move->freezing + cost->first;
    move->all = move->freezing + cost->all;
    atomic_store(&move->step, MOVE_DONE);
}

static void handle_leaders(struct board *board, uint32_t from, const struct frame_head *head, const uint8_t *payload,
                           const struct order *order)
{
    uint32_t process = head->process, to = board->net.next_tile[process];
    bool moving = board->net.moving[process];
    char why[REASON_SIZE];
    struct cost cost;
    int error;

    switch (head->kind) {
    case FRAME_STATE: /* from the owner */
        if (moving && net_host_of_tile(board, to) != 0)
            net_send(board, net_host_of_tile(board, to), FRAME_STATE, process, payload, head->size);
        else if (moving) {
            const char *wrong = take_state(board, process, payload, head->size);

            if (wrong)
                call_off(board, process, wrong, true);
            else
                commit(board, process);
        }
        break;
    case FRAME_READY:
        if (moving && from == net_host_of_tile(board, to))
            commit(board, process);
        break;
    case FRAME_REFUSED:
        if (moving)
            call_off(board, process, order->why, true);
        else
            end_record(board, process, order->to, order->why);
        break;
    case FRAME_MOVED:
        if (head->size == sizeof(cost)) {
            memcpy(&cost, payload, sizeof(cost));
            take_cost(board, process, &cost);
        }
        break;
    case FRAME_WISH:
        error = moves_ask(board, process, order->to, order->mode, why, sizeof(why));
        if (error < 0)
            moves_answer(board, process, error);
        else
            board->wished[order->to] = true;
        break;
    default:
        break;
    }
}

void transfer_handle(struct board *board, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    uint32_t process = head->process;
    struct order order = {0};
    char why[REASON_SIZE];
    const char *wrong;
    struct move *move;

    if (head->size == sizeof(order))
        memcpy(&order, payload, sizeof(order));
    order.why[REASON_SIZE - 1] = 0;
    switch (head->kind) {
    case FRAME_START:
        wrong = take_state(board, process, payload, head->size);
        if (!wrong)
            go(board, process, false);
        else
            fprintf(stderr, "wherry-tiles: cannot start process %u: %s\n", process, wrong);
        break;
    case FRAME_GIVE:
        give(board, process, &order);
        break;
    case FRAME_MOVE:
        if (moves_ask(board, process, order.to, order.mode, why, sizeof(why)) < 0)
            refuse(board, process, order.to, why);
        break;
    case FRAME_ANSWER:
        moves_answer(board, process, -(int)order.mode);
        break;
    case FRAME_GO:
        go(board, process, true);
        break;
    case FRAME_COMMITTED:
        committed(board, process);
        break;
    case FRAME_ABORT:
        if (board->net.arriving[process]) {
            relay_clear(board, process);
            relay_open(board, process);
        }
        move = find_give(board, process);
        if (move) {
            forget_given(board, process);
            abort_give(board, move, order.why);
        }
        break;
    default:
        if (board->net.host == 0) {
            handle_leaders(board, from, head, payload, &order);
        } else if (head->kind == FRAME_STATE) {
            wrong = take_state(board, process, payload, head->size);
            if (wrong)
                refuse(board, process, 0, wrong);
            else
                net_send(board, 0, FRAME_READY, process, NULL, 0);
        }
    }
}
