/* See relay.h. */
#include "relay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t nothing[1];

void relay_keep(struct queue *queue, const struct parcel *parcel, const uint8_t *bytes)
{
    struct kept *kept = malloc(sizeof(*kept) + parcel->size);

    if (!kept)
        abort(); /* a parcel that was accepted must not be lost */
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

/* A parcel was delivered or dropped: the board that sent it has one more credit. */
static void acknowledge(struct relay *relay, uint32_t process, uint32_t origin)
{
    if (origin == relay->net->host) {
        if (relay->credit[process])
            relay->credit[process]--;
    } else if (origin < relay->net->hosts) {
        link_send(net_link(relay->net, origin), FRAME_DELIVERED, process, origin, NULL, 0);
    }
}

void relay_reset_credit(struct relay *relay)
{
    memset(relay->credit, 0, sizeof(relay->credit));
}

/* Permission to send: written where the sender looks for it, in the endpoint of the process that grants it. */
static int deliver_grant(struct relay *relay, uint32_t process, const struct parcel *parcel)
{
    struct endpoint *endpoint = &relay->window->endpoints[parcel->from];
    struct portal *portal = &endpoint->portals[parcel->port];

    endpoint_lock(endpoint);
    if (net_is_here(relay->net, parcel->from)) { /* the granting process has moved here itself */
        if (portal->expected && portal->from == process && portal->ticket == parcel->ticket)
            portal->allowed = parcel->amount;
    } else {
        portal->from = process;
        portal->ticket = parcel->ticket;
        portal->first = portal->count = 0;
        portal->allowed = portal->expected = parcel->amount;
    }
    endpoint_unlock(endpoint);
    window_ring_process(relay->window, process);
    return 0;
}

static int deliver_signals(struct relay *relay, uint32_t process, const struct parcel *parcel)
{
    struct endpoint *endpoint = &relay->window->endpoints[process];

    endpoint_lock(endpoint);
    endpoint->signals[parcel->port][parcel->from] += (uint32_t)parcel->amount;
    endpoint_unlock(endpoint);
    window_ring_process(relay->window, process);
    return 0;
}

static int deliver_piece(struct relay *relay, uint32_t process, const struct parcel *parcel, const uint8_t *bytes)
{
    struct endpoint *endpoint = &relay->window->endpoints[process];
    struct portal *portal = &endpoint->portals[parcel->port];
    uint32_t at;
    int result = 0;

    endpoint_lock(endpoint);
    at = (portal->first + portal->count) % PIECE_DEPTH;
    if (!portal->expected || portal->from != parcel->from) {
        result = -ESRCH; /* of a transfer that was cancelled */
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
        window_ring_process(relay->window, process);
    return result;
}

static int deliver_mail(struct relay *relay, uint32_t process, const struct parcel *parcel, const uint8_t *bytes)
{
    struct mail mail = {.from = parcel->from, .size = parcel->size};
    int result;

    if (process == CONSOLE_PROCESS) { /* the leader's own: there is always room */
        memcpy(mail.bytes, bytes, parcel->size);
        relay->events.console(relay->events.context, parcel->port, &mail);
        return 0;
    }
    result = inbox_hand_over(relay->window, process, parcel->port, parcel->from, bytes, parcel->size);
    if (result == 0)
        window_ring_process(relay->window, process);
    return result;
}

/* Returns 0, -EAGAIN: no room, or -ESRCH. */
static int try_deliver(struct relay *relay, uint32_t process, const struct parcel *parcel, const uint8_t *bytes)
{
    switch (parcel->kind) {
    case PARCEL_MAIL:
        return deliver_mail(relay, process, parcel, bytes);
    case PARCEL_PIECE:
        return deliver_piece(relay, process, parcel, bytes);
    case PARCEL_SIGNAL:
        return deliver_signals(relay, process, parcel);
    default:
        return deliver_grant(relay, process, parcel);
    }
}

static bool is_counted(const struct parcel *parcel)
{
    return parcel->kind == PARCEL_MAIL || parcel->kind == PARCEL_PIECE;
}

/* Blocks sends of our tiles on whose behalf older parcels still wait here: they must not be overtaken. */
static void set_behind(struct relay *relay, uint32_t process)
{
    struct endpoint *endpoint = &relay->window->endpoints[process];
    uint32_t behind = relay->closed[process] ? ~0u : 0, before;

    for (const struct kept *kept = relay->pending[process].first; kept; kept = kept->next)
        behind |= 1u << kept->parcel.from;
    endpoint_lock(endpoint);
    before = endpoint->behind;
    endpoint->behind = behind;
    endpoint_unlock(endpoint);
    window_ring_processes(relay->window, before & ~behind);
}

/* Each port is a stream of its own: one that is full does not hold up the others. */
static void deliver_pending(struct relay *relay, uint32_t process)
{
    struct queue *queue = &relay->pending[process];
    uint32_t full_ports = 0, full_portals = 0;
    struct kept **at = &queue->first, *last = NULL;

    if (relay->transit[process] & TRANSIT_LEAVING || (!queue->first && !relay->window->endpoints[process].behind))
        return; /* the parcels were sent with the process, and must not be delivered here as well */
    while (*at) {
        struct kept *kept = *at;
        uint32_t *full = kept->parcel.kind == PARCEL_PIECE ? &full_portals : &full_ports;
        bool counted = is_counted(&kept->parcel);
        int result = -EAGAIN;

        if (!counted || !(*full >> kept->parcel.port & 1))
            result = try_deliver(relay, process, &kept->parcel, kept->bytes);
        if (result == -EAGAIN) {
            *full |= 1u << kept->parcel.port;
            last = kept;
            at = &kept->next;
            continue;
        }
        *at = kept->next;
        if (counted)
            acknowledge(relay, process, kept->parcel.origin);
        free(kept);
    }
    queue->last = last;
    set_behind(relay, process);
}

static void deliver(struct relay *relay, uint32_t process, const struct parcel *parcel, const uint8_t *bytes)
{
    relay_keep(&relay->pending[process], parcel, bytes);
    if (process == CONSOLE_PROCESS || net_is_here(relay->net, process))
        deliver_pending(relay, process); /* now: the next frame may tell that its sender has ended */
}

void relay_close(struct relay *relay, uint32_t process)
{
    relay->closed[process] = true;
    set_behind(relay, process);
}

void relay_fill(struct relay *relay, uint32_t process)
{
    deliver_pending(relay, process);
}

void relay_open(struct relay *relay, uint32_t process)
{
    relay->closed[process] = false;
    deliver_pending(relay, process);
}

bool relay_is_valid(const struct parcel *parcel)
{
    static const uint32_t ports[] = {PORT_MAX, SYNC_MAX, PORTAL_MAX, PORTAL_MAX};
    static const uint32_t sizes[] = {MAIL_SIZE, 0, PAGE_SIZE, 0};

    return parcel->kind <= PARCEL_ALLOW && parcel->from < PROCESS_MAX && parcel->port < ports[parcel->kind] &&
           parcel->size <= sizes[parcel->kind];
}

static void route(struct relay *relay, uint32_t process, const struct parcel *parcel, const uint8_t *bytes)
{
    struct net *net = relay->net;
    struct place place = window_place(relay->window, process);
    uint32_t host = process == CONSOLE_PROCESS ? 0 : net_host_of_tile(relay->net, place.tile);

    relay->events.speaks(relay->events.context, parcel->from);
    if (net->host != 0)
        host = 0;
    else if (relay->holding[process]) {
        relay_keep(&relay->held[process], parcel, bytes);
        return;
    } else if (window_place(relay->window, process).state != PLACE_RUNNING && process != CONSOLE_PROCESS) {
        if (is_counted(parcel))
            acknowledge(relay, process, parcel->origin); /* the process has ended: dropped */
        return;
    }
    if (host == net->host)
        deliver(relay, process, parcel, bytes);
    else
        link_send_parts(net_link(net, host), FRAME_PARCEL, process, 0, parcel, sizeof(*parcel),
                        bytes, parcel->size);
}

/* Without the lock: there are 32 ports to each process, and nearly all are empty. */
static bool has_mail(const struct relay *relay, uint32_t process, uint32_t port)
{
    return __atomic_load_n(&relay->window->endpoints[process].ports[port].count, __ATOMIC_ACQUIRE);
}

static void drain_ports(struct relay *relay, uint32_t process, bool all)
{
    struct net *net = relay->net;
    struct mail mail;

    for (uint32_t port = 0; port < PORT_MAX; port++)
        while (has_mail(relay, process, port) && (all || relay->credit[process] < CREDIT) &&
               inbox_take(relay->window, process, port, &mail)) {
            struct parcel parcel = {PARCEL_MAIL, (uint8_t)mail.from, (uint8_t)port, (uint8_t)net->host, 0, mail.size,
                                    0};

            relay->credit[process]++;
            route(relay, process, &parcel, mail.bytes);
        }
}

static void drain_portals(struct relay *relay, uint32_t process, bool all)
{
    struct endpoint *endpoint = &relay->window->endpoints[process];
    struct net *net = relay->net;
    uint8_t bytes[PAGE_SIZE];

    for (uint32_t port = 0; port < PORTAL_MAX; port++)
        while (all || relay->credit[process] < CREDIT) {
            struct portal *portal = &endpoint->portals[port];
            struct parcel parcel = {PARCEL_PIECE, (uint8_t)portal->from, (uint8_t)port, (uint8_t)net->host, 0, 0, 0};

            parcel.size = portal_take_piece(relay->window, process, port, bytes);
            if (!parcel.size)
                break;
            relay->credit[process]++;
            route(relay, process, &parcel, bytes);
        }
}

static void drain_signals(struct relay *relay, uint32_t process)
{
    struct endpoint *endpoint = &relay->window->endpoints[process];

    for (uint32_t sync = 0; sync < SYNC_MAX; sync++)
        for (uint32_t from = 0; from < PROCESS_MAX; from++) {
            struct parcel parcel = {PARCEL_SIGNAL, (uint8_t)from, (uint8_t)sync, (uint8_t)relay->net->host, 0, 0, 0};

            if (!__atomic_load_n(&endpoint->signals[sync][from], __ATOMIC_ACQUIRE))
                continue;
            endpoint_lock(endpoint);
            parcel.amount = endpoint->signals[sync][from];
            endpoint->signals[sync][from] = 0;
            endpoint_unlock(endpoint);
            if (parcel.amount)
                route(relay, process, &parcel, nothing);
        }
}

static void drain(struct relay *relay, uint32_t process, bool all)
{
    drain_ports(relay, process, all);
    drain_portals(relay, process, all);
    drain_signals(relay, process);
}

/* Also to processes that are leaving: the leader holds it until they have arrived. */
void relay_announce_grants(struct relay *relay, uint32_t process)
{
    struct endpoint *endpoint = &relay->window->endpoints[process];

    for (uint32_t port = 0; port < PORTAL_MAX; port++) {
        struct portal *portal = &endpoint->portals[port];
        struct parcel parcel = {PARCEL_ALLOW, (uint8_t)process, (uint8_t)port, (uint8_t)relay->net->host, 0, 0, 0};
        uint32_t to;

        endpoint_lock(endpoint);
        to = portal->from;
        if (portal->fresh && (!net_is_here(relay->net, to) || relay->transit[to] & TRANSIT_LEAVING)) {
            parcel.ticket = portal->ticket;
            parcel.amount = portal->allowed;
            portal->allowed = 0;
        }
        portal->fresh = false;
        endpoint_unlock(endpoint);
        if (parcel.amount)
            route(relay, to, &parcel, nothing);
    }
}

static bool is_elsewhere(struct relay *relay, uint32_t process)
{
    if (process == CONSOLE_PROCESS)
        return relay->net->host != 0;
    if (relay->transit[process] & TRANSIT_LOADED)
        return false; /* the endpoint is the process's own by now */
    return window_place(relay->window, process).state == PLACE_RUNNING && !net_is_here(relay->net, process);
}

void relay_flush(struct relay *relay)
{
    for (uint32_t process = 0; process < PROCESS_MAX; process++)
        if (is_elsewhere(relay, process))
            drain(relay, process, true);
}

bool relay_is_behind(const struct relay *relay)
{
    for (uint32_t process = 0; process < PROCESS_MAX; process++)
        if (relay->credit[process] > FLUSHED)
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

void relay_clear(struct relay *relay, uint32_t process)
{
    relay_forget(&relay->pending[process]);
    relay_forget(&relay->held[process]);
    relay->credit[process] = 0;
    relay->closed[process] = false;
}

void relay_serve(struct relay *relay)
{
    for (uint32_t process = 0; process < PROCESS_MAX; process++) {
        if (is_elsewhere(relay, process) && !(relay->transit[process] & TRANSIT_EXPECTED))
            drain(relay, process, false);
        else if (net_is_here(relay->net, process))
            relay_announce_grants(relay, process);
        if (process == CONSOLE_PROCESS || net_is_here(relay->net, process))
            deliver_pending(relay, process);
    }
}

void relay_mark(struct relay *relay, uint32_t process, enum transit transit, bool on)
{
    relay->transit[process] = (uint8_t)(on ? relay->transit[process] | transit : relay->transit[process] & ~transit);
}

void relay_release(struct relay *relay, uint32_t process, uint32_t host)
{
    struct queue *held = &relay->held[process];

    for (const struct kept *kept = held->first; kept; kept = kept->next)
        if (host == 0)
            deliver(relay, process, &kept->parcel, kept->bytes);
        else
            link_send_parts(net_link(relay->net, host), FRAME_PARCEL, process, host, &kept->parcel,
                            sizeof(kept->parcel), kept->bytes, kept->parcel.size);
    relay_forget(held);
}

static void on_parcel(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    struct relay *relay = context;
    struct parcel parcel;

    (void)from;
    if (head->size < sizeof(parcel))
        return;
    memcpy(&parcel, payload, sizeof(parcel));
    if (parcel.size != head->size - sizeof(parcel) || !relay_is_valid(&parcel))
        return;
    if (relay->net->host != 0 &&
        (net_is_here(relay->net, head->process) || relay->transit[head->process] & TRANSIT_EXPECTED))
        deliver(relay, head->process, &parcel, payload + sizeof(parcel));
    else
        route(relay, head->process, &parcel, payload + sizeof(parcel));
}

static void on_delivered(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    (void)from, (void)payload;
    acknowledge(context, head->process, head->host);
}

static void on_host_gone(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    (void)from, (void)head, (void)payload;
    relay_reset_credit(context);
}

void relay_init(struct relay *relay, struct net *net, const struct relay_events *events)
{
    relay->net = net;
    relay->window = net->window;
    relay->events = *events;
    net_on_frame(net, FRAME_PARCEL, on_parcel, relay);
    net_on_frame(net, FRAME_DELIVERED, on_delivered, relay);
    net_on_frame(net, FRAME_GONE, on_host_gone, relay);
}
