/* Parcels: what processes of different hosts say to each other; see net.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

static const uint8_t nothing[1];

void relay_keep(struct queue *queue, const struct parcel *parcel, const uint8_t *bytes)
{
    struct kept *kept = malloc(sizeof(*kept) + parcel->size);

    if (!kept)
        abort(); /* what was accepted is not lost */
    kept->next = NULL;
    kept->parcel = *parcel;
    if (parcel->size)
        memcpy(kept->bytes, bytes, parcel->size);
    if (queue->last)
        queue->last->next = kept;
    else
        queue->first = kept;
    queue->last = kept;
}

void relay_forget(struct queue *queue)
{
    while (queue->first) {
        struct kept *kept = queue->first;

        queue->first = kept->next;
        free(kept);
    }
    queue->last = NULL;
}

void relay_delivered(struct board *board, uint32_t process, uint32_t origin)
{
    if (origin == board->net.host) {
        if (board->net.credit[process])
            board->net.credit[process]--;
    } else if (origin < board->net.hosts) {
        struct link *link = &board->net.links[board->net.host == 0 ? origin : 0];

        link_send(link, FRAME_DELIVERED, process, origin, NULL, 0);
    }
}

void relay_forgive(struct board *board)
{
    memset(board->net.credit, 0, sizeof(board->net.credit));
}

/* A process is allowed to send: written where it looks for that, the endpoint of who allows it, here. */
static int deliver_leave(struct board *board, uint32_t process, const struct parcel *parcel)
{
    struct endpoint *endpoint = &board->window->endpoints[parcel->from];
    struct portal *portal = &endpoint->portals[parcel->port];

    endpoint_lock(endpoint);
    if (net_is_here(board, parcel->from)) { /* who allows it has come here itself */
        if (portal->expected && portal->from == process && portal->ticket == parcel->ticket)
            portal->allowed = parcel->amount;
    } else {
        portal->from = process;
        portal->ticket = parcel->ticket;
        portal->first = portal->count = 0;
        portal->allowed = portal->expected = parcel->amount;
    }
    endpoint_unlock(endpoint);
    window_ring_process(board->window, process);
    return 0;
}

static int deliver_signals(struct board *board, uint32_t process, const struct parcel *parcel)
{
    struct endpoint *endpoint = &board->window->endpoints[process];

    endpoint_lock(endpoint);
    endpoint->signals[parcel->port][parcel->from] += (uint32_t)parcel->amount;
    endpoint_unlock(endpoint);
    window_ring_process(board->window, process);
    return 0;
}

static int deliver_piece(struct board *board, uint32_t process, const struct parcel *parcel, const uint8_t *bytes)
{
    struct endpoint *endpoint = &board->window->endpoints[process];
    struct portal *portal = &endpoint->portals[parcel->port];
    uint32_t at;
    int result = 0;

    endpoint_lock(endpoint);
    at = (portal->first + portal->count) % PIECE_DEPTH;
    if (!portal->expected || portal->from != parcel->from) {
        result = -ESRCH; /* of a transfer that was given up */
    } else if (portal->count == PIECE_DEPTH) {
        endpoint->waiting |= 1u << parcel->from;
        result = -EAGAIN;
    } else {
        memcpy(portal->pieces[at], bytes, parcel->size);
        portal->sizes[at] = parcel->size;
        portal->count++;
    }
    endpoint_unlock(endpoint);
    if (result == 0)
        window_ring_process(board->window, process);
    return result;
}

static int deliver_mail(struct board *board, uint32_t process, const struct parcel *parcel, const uint8_t *bytes)
{
    struct mail mail = {.from = parcel->from, .size = parcel->size};
    int result;

    if (process == CONSOLE_PROCESS) { /* the leader's own: it has always room */
        memcpy(mail.bytes, bytes, parcel->size);
        if (parcel->port == SERVER_PORT)
            names_take(board, &mail);
        else if (parcel->port == 0)
            client_take(board, &mail);
        return 0;
    }
    result = inbox_hand_over(board->window, process, parcel->port, parcel->from, bytes, parcel->size);
    if (result == 0)
        window_ring_process(board->window, process);
    return result;
}

/* Returns 0, -EAGAIN: no room, or -ESRCH. */
static int try_deliver(struct board *board, uint32_t process, const struct parcel *parcel, const uint8_t *bytes)
{
    switch (parcel->kind) {
    case PARCEL_MAIL:
        return deliver_mail(board, process, parcel, bytes);
    case PARCEL_PIECE:
        return deliver_piece(board, process, parcel, bytes);
    case PARCEL_SIGNAL:
        return deliver_signals(board, process, parcel);
    default:
        return deliver_leave(board, process, parcel);
    }
}

static bool is_counted(const struct parcel *parcel)
{
    return parcel->kind == PARCEL_MAIL || parcel->kind == PARCEL_PIECE;
}

/* Tiles of this host do not overtake what waits here for the process. */
static void set_behind(struct board *board, uint32_t process)
{
    struct endpoint *endpoint = &board->window->endpoints[process];
    uint32_t behind = board->net.closed[process] ? ~0u : 0, before;

    for (const struct kept *kept = board->net.pending[process].first; kept; kept = kept->next)
        behind |= 1u << kept->parcel.from;
    endpoint_lock(endpoint);
    before = endpoint->behind;
    endpoint->behind = behind;
    endpoint_unlock(endpoint);
    window_ring_processes(board->window, before & ~behind);
}

/* Each port is a stream of its own: one that is full does not hold up the others. */
static void deliver_pending(struct board *board, uint32_t process)
{
    struct queue *queue = &board->net.pending[process];
    uint32_t full_ports = 0, full_portals = 0;
    struct kept **at = &queue->first, *last = NULL;

    if (board->net.given[process] || (!queue->first && !board->window->endpoints[process].behind))
        return; /* what was sent with a process that is leaving is not delivered here as well */
    while (*at) {
        struct kept *kept = *at;
        uint32_t *full = kept->parcel.kind == PARCEL_PIECE ? &full_portals : &full_ports;
        bool counted = is_counted(&kept->parcel);
        int result = -EAGAIN;

        if (!counted || !(*full >> kept->parcel.port & 1))
            result = try_deliver(board, process, &kept->parcel, kept->bytes);
        if (result == -EAGAIN) {
            *full |= 1u << kept->parcel.port;
            last = kept;
            at = &kept->next;
            continue;
        }
        *at = kept->next;
        if (counted)
            relay_delivered(board, process, kept->parcel.origin);
        free(kept);
    }
    queue->last = last;
    set_behind(board, process);
}

void relay_deliver(struct board *board, uint32_t process, const struct parcel *parcel, const uint8_t *bytes)
{
    relay_keep(&board->net.pending[process], parcel, bytes);
    if (process == CONSOLE_PROCESS || net_is_here(board, process))
        deliver_pending(board, process); /* now: the news of its sender's end may be next */
}

void relay_close(struct board *board, uint32_t process)
{
    board->net.closed[process] = true;
    set_behind(board, process);
}

void relay_fill(struct board *board, uint32_t process)
{
    deliver_pending(board, process);
}

void relay_open(struct board *board, uint32_t process)
{
    board->net.closed[process] = false;
    deliver_pending(board, process);
}

bool relay_is_valid(const struct parcel *parcel)
{
    static const uint32_t ports[] = {PORT_MAX, SYNC_MAX, PORTAL_MAX, PORTAL_MAX};
    static const uint32_t sizes[] = {MAIL_SIZE, 0, PAGE_SIZE, 0};

    return parcel->kind <= PARCEL_ALLOW && parcel->from < PROCESS_MAX && parcel->port < ports[parcel->kind] &&
           parcel->size <= sizes[parcel->kind];
}

void relay_route(struct board *board, uint32_t process, const struct parcel *parcel, const uint8_t *bytes)
{
    struct net *net = &board->net;
    uint32_t host = process == CONSOLE_PROCESS ? 0 : net_host_of_tile(board, window_place(board->window, process).tile);

    mirror_has_come(board, parcel->from); /* who says this runs here: that goes first */
    if (net->host != 0)
        host = 0;
    else if (net->passages[process].step == PASSAGE_HELD) {
        relay_keep(&net->held[process], parcel, bytes);
        return;
    } else if (window_place(board->window, process).state != PLACE_RUNNING && process != CONSOLE_PROCESS) {
        if (is_counted(parcel))
            relay_delivered(board, process, parcel->origin); /* it has ended: to nobody */
        return;
    }
    if (host == net->host)
        relay_deliver(board, process, parcel, bytes);
    else
        link_send_parts(&net->links[net->host == 0 ? host : 0], FRAME_PARCEL, process, 0, parcel, sizeof(*parcel),
                        bytes, parcel->size);
}

/* Without the lock: there are 32 ports to each process, and nearly all are empty. */
static bool has_mail(const struct board *board, uint32_t process, uint32_t port)
{
    return __atomic_load_n(&board->window->endpoints[process].ports[port].count, __ATOMIC_ACQUIRE);
}

static void drain_ports(struct board *board, uint32_t process, bool all)
{
    struct net *net = &board->net;
    struct mail mail;

    for (uint32_t port = 0; port < PORT_MAX; port++)
        while (has_mail(board, process, port) && (all || net->credit[process] < CREDIT) && inbox_take(board->window, process, port, &mail)) {
            struct parcel parcel = {PARCEL_MAIL, (uint8_t)mail.from, (uint8_t)port, (uint8_t)net->host, 0, mail.size, 0};

            net->credit[process]++;
            relay_route(board, process, &parcel, mail.bytes);
        }
}

static void drain_portals(struct board *board, uint32_t process, bool all)
{
    struct endpoint *endpoint = &board->window->endpoints[process];
    struct net *net = &board->net;
    uint8_t bytes[PAGE_SIZE];

    for (uint32_t port = 0; port < PORTAL_MAX; port++)
        while (all || net->credit[process] < CREDIT) {
            struct portal *portal = &endpoint->portals[port];
            struct parcel parcel = {PARCEL_PIECE, (uint8_t)portal->from, (uint8_t)port, (uint8_t)net->host, 0, 0, 0};

            parcel.size = portal_take_piece(board->window, process, port, bytes);
            if (!parcel.size)
                break;
            net->credit[process]++;
            relay_route(board, process, &parcel, bytes);
        }
}

static void drain_signals(struct board *board, uint32_t process)
{
    struct endpoint *endpoint = &board->window->endpoints[process];

    for (uint32_t sync = 0; sync < SYNC_MAX; sync++)
        for (uint32_t from = 0; from < PROCESS_MAX; from++) {
            struct parcel parcel = {PARCEL_SIGNAL, (uint8_t)from, (uint8_t)sync, (uint8_t)board->net.host, 0, 0, 0};

            if (!__atomic_load_n(&endpoint->signals[sync][from], __ATOMIC_ACQUIRE))
                continue;
            endpoint_lock(endpoint);
            parcel.amount = endpoint->signals[sync][from];
            endpoint->signals[sync][from] = 0;
            endpoint_unlock(endpoint);
            if (parcel.amount)
                relay_route(board, process, &parcel, nothing);
        }
}

static void drain(struct board *board, uint32_t process, bool all)
{
    drain_ports(board, process, all);
    drain_portals(board, process, all);
    drain_signals(board, process);
}

/* What a process of ours allows to processes of other hosts, and to those that are leaving: the leader keeps it. */
void relay_announce_leave(struct board *board, uint32_t process)
{
    struct endpoint *endpoint = &board->window->endpoints[process];

    for (uint32_t port = 0; port < PORTAL_MAX; port++) {
        struct portal *portal = &endpoint->portals[port];
        struct parcel parcel = {PARCEL_ALLOW, (uint8_t)process, (uint8_t)port, (uint8_t)board->net.host, 0, 0, 0};
        uint32_t to;

        endpoint_lock(endpoint);
        to = portal->from;
        if (portal->fresh && (!net_is_here(board, to) || board->net.given[to])) {
            parcel.ticket = portal->ticket;
            parcel.amount = portal->allowed;
            portal->allowed = 0;
        }
        portal->fresh = false;
        endpoint_unlock(endpoint);
        if (parcel.amount)
            relay_route(board, to, &parcel, nothing);
    }
}

static bool is_elsewhere(struct board *board, uint32_t process)
{
    if (process == CONSOLE_PROCESS)
        return board->net.host != 0;
    if (board->net.arriving[process] && board->net.arriving[process]->has_state)
        return false; /* what is there is its own by now */
    return window_place(board->window, process).state == PLACE_RUNNING && !net_is_here(board, process);
}

void relay_flush(struct board *board)
{
    for (uint32_t process = 0; process < PROCESS_MAX; process++)
        if (is_elsewhere(board, process))
            drain(board, process, true);
}

bool relay_is_behind(const struct board *board)
{
    for (uint32_t process = 0; process < PROCESS_MAX; process++)
        if (board->net.credit[process] > FLUSHED)
            return true;
    return false;
}

size_t relay_count_bytes(const struct queue *queue)
{
    size_t size = 0;

    for (const struct kept *kept = queue->first; kept; kept = kept->next)
        size += sizeof(kept->parcel) + kept->parcel.size;
    return size;
}

void relay_clear(struct board *board, uint32_t process)
{
    relay_forget(&board->net.pending[process]);
    relay_forget(&board->net.held[process]);
    board->net.credit[process] = 0;
    board->net.closed[process] = false;
    free(board->net.arriving[process]);
    board->net.arriving[process] = NULL;
}

void relay_serve(struct board *board)
{
    for (uint32_t process = 0; process < PROCESS_MAX; process++) {
        if (is_elsewhere(board, process) && !board->net.arriving[process])
            drain(board, process, false);
        else if (net_is_here(board, process))
            relay_announce_leave(board, process);
        if (process == CONSOLE_PROCESS || net_is_here(board, process))
            deliver_pending(board, process);
    }
}
