/* See parcel_router.h. */
#include "parcel_router.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t nothing[1];

void router_keep(struct queue *queue, const struct parcel *parcel, const uint8_t *bytes)
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

void router_forget(struct queue *queue)
{
    while (queue->first) {
        struct kept *kept = queue->first;

        queue->first = kept->next;
        free(kept);
    }
    queue->last = NULL;
}

/* A parcel was delivered or dropped: the board that sent it has one more credit. */
static void acknowledge(struct parcel_router *router, uint32_t process, uint32_t origin)
{
    if (origin == router->net->host) {
        if (router->credit[process])
            router->credit[process]--;
    } else if (origin < router->net->hosts) {
        channel_send(net_channel(router->net, origin), FRAME_DELIVERED, process, origin, NULL, 0);
    }
}

void router_reset_credit(struct parcel_router *router)
{
    memset(router->credit, 0, sizeof(router->credit));
}

/* Permission to send: written where the sender looks for it, in the endpoint of the process that grants it. */
static int deliver_grant(struct parcel_router *router, uint32_t process, const struct parcel *parcel)
{
    struct endpoint *endpoint = &router->shared->endpoints[parcel->from];
    struct portal *portal = &endpoint->portals[parcel->port];

    endpoint_lock(endpoint);
    if (net_is_here(router->net, parcel->from)) { /* the granting process has moved here itself */
        if (portal->expected && portal->from == process && portal->ticket == parcel->ticket)
            portal->allowed = parcel->amount;
    } else {
        portal->from = process;
        portal->ticket = parcel->ticket;
        portal->first = portal->count = 0;
        portal->allowed = portal->expected = parcel->amount;
    }
    endpoint_unlock(endpoint);
    shared_ring_process(router->shared, process);
    return 0;
}

static int deliver_signals(struct parcel_router *router, uint32_t process, const struct parcel *parcel)
{
    struct endpoint *endpoint = &router->shared->endpoints[process];

    endpoint_lock(endpoint);
    endpoint->signals[parcel->port][parcel->from] += (uint32_t)parcel->amount;
    endpoint_unlock(endpoint);
    shared_ring_process(router->shared, process);
    return 0;
}

static int deliver_piece(struct parcel_router *router, uint32_t process, const struct parcel *parcel,
                         const uint8_t *bytes)
{
    struct endpoint *endpoint = &router->shared->endpoints[process];
    struct portal *portal = &endpoint->portals[parcel->port];
    uint32_t at;
    int result = 0;

    endpoint_lock(endpoint);
    at = (portal->first + portal->count) % PIECE_DEPTH;
    if (!portal->expected || portal->from != parcel->from) {
        result = -ESRCH; /* of a bulk transfer that was cancelled */
    } else if (portal->count == PIECE_DEPTH) {
        endpoint->waiting |= 1u << parcel->from;
        result = -EAGAIN;
    } else {
        memcpy(portal->pieces[at], bytes, parcel->size);
        portal->sizes[at] = parcel->size;
        portal->due[at] = 0;
        portal->count++;
    }
    endpoint_unlock(endpoint);
    if (result == 0)
        shared_ring_process(router->shared, process);
    return result;
}

static int deliver_mail(struct parcel_router *router, uint32_t process, const struct parcel *parcel,
                        const uint8_t *bytes)
{
    struct mail mail = {.from = parcel->from, .size = parcel->size};
    int result;

    if (process == CONSOLE_PROCESS) { /* the leader's own: there is always room */
        memcpy(mail.bytes, bytes, parcel->size);
        router->events.console(router->events.context, parcel->port, &mail);
        return 0;
    }
    result = mailbox_hand_over(router->shared, process, parcel->port, parcel->from, bytes, parcel->size);
    if (result == 0)
        shared_ring_process(router->shared, process);
    return result;
}

/* Returns 0, -EAGAIN: no room, or -ESRCH. */
static int try_deliver(struct parcel_router *router, uint32_t process, const struct parcel *parcel,
                       const uint8_t *bytes)
{
    switch (parcel->kind) {
    case PARCEL_MAIL:
        return deliver_mail(router, process, parcel, bytes);
    case PARCEL_PIECE:
        return deliver_piece(router, process, parcel, bytes);
    case PARCEL_SIGNAL:
        return deliver_signals(router, process, parcel);
    default:
        return deliver_grant(router, process, parcel);
    }
}

static bool is_counted(const struct parcel *parcel)
{
    return parcel->kind == PARCEL_MAIL || parcel->kind == PARCEL_PIECE;
}

/* Blocks sends of our tiles on whose behalf older parcels still wait here: they must not be overtaken. */
static void set_behind(struct parcel_router *router, uint32_t process)
{
    struct endpoint *endpoint = &router->shared->endpoints[process];
    uint32_t behind = router->closed[process] ? ~0u : 0, before;

    for (const struct kept *kept = router->pending[process].first; kept; kept = kept->next)
        behind |= 1u << kept->parcel.from;
    endpoint_lock(endpoint);
    before = endpoint->behind;
    endpoint->behind = behind;
    endpoint_unlock(endpoint);
    shared_ring_processes(router->shared, before & ~behind);
}

/* Each port is a stream of its own: a full one does not hold up the others. */
static void deliver_pending(struct parcel_router *router, uint32_t process)
{
    struct queue *queue = &router->pending[process];
    uint32_t full_ports = 0, full_portals = 0;
    struct kept **at = &queue->first, *last = NULL;

    if (router->transit[process] & TRANSIT_LEAVING || (!queue->first && !router->shared->endpoints[process].behind))
        return; /* the parcels were sent with the process, and must not be delivered here as well */
    while (*at) {
        struct kept *kept = *at;
        uint32_t *full = kept->parcel.kind == PARCEL_PIECE ? &full_portals : &full_ports;
        bool counted = is_counted(&kept->parcel);
        int result = -EAGAIN;

        if (!counted || !(*full >> kept->parcel.port & 1))
            result = try_deliver(router, process, &kept->parcel, kept->bytes);
        if (result == -EAGAIN) {
            *full |= 1u << kept->parcel.port;
            last = kept;
            at = &kept->next;
            continue;
        }
        *at = kept->next;
        if (counted)
            acknowledge(router, process, kept->parcel.origin);
        free(kept);
    }
    queue->last = last;
    set_behind(router, process);
}

static void deliver(struct parcel_router *router, uint32_t process, const struct parcel *parcel, const uint8_t *bytes)
{
    router_keep(&router->pending[process], parcel, bytes);
    if (process == CONSOLE_PROCESS || net_is_here(router->net, process))
        deliver_pending(router, process); /* now: the next frame may be the end of its sender */
}

void router_close(struct parcel_router *router, uint32_t process)
{
    router->closed[process] = true;
    set_behind(router, process);
}

void router_fill(struct parcel_router *router, uint32_t process)
{
    deliver_pending(router, process);
}

void router_open(struct parcel_router *router, uint32_t process)
{
    router->closed[process] = false;
    deliver_pending(router, process);
}

bool router_is_valid(const struct parcel *parcel)
{
    static const uint32_t ports[] = {PORT_MAX, SYNC_MAX, PORTAL_MAX, PORTAL_MAX};
    static const uint32_t sizes[] = {MAIL_SIZE, 0, PAGE_SIZE, 0};

    return parcel->kind <= PARCEL_ALLOW && parcel->from < PROCESS_MAX && parcel->port < ports[parcel->kind] &&
           parcel->size <= sizes[parcel->kind];
}

static void route(struct parcel_router *router, uint32_t process, const struct parcel *parcel, const uint8_t *bytes)
{
    struct net *net = router->net;
    struct place place = shared_place(router->shared, process);
    uint32_t host = process == CONSOLE_PROCESS ? 0 : net_host_of_tile(router->net, place.tile);

    router->events.speaks(router->events.context, parcel->from);
    if (net->host != 0)
        host = 0;
    else if (router->holding[process]) {
        router_keep(&router->held[process], parcel, bytes);
        return;
    } else if (shared_place(router->shared, process).state != PLACE_RUNNING && process != CONSOLE_PROCESS) {
        if (is_counted(parcel))
            acknowledge(router, process, parcel->origin); /* the process has ended: dropped */
        return;
    }
    if (host == net->host)
        deliver(router, process, parcel, bytes);
    else
        channel_send_parts(net_channel(net, host), FRAME_PARCEL, process, 0, parcel, sizeof(*parcel),
                           bytes, parcel->size);
}

/* Without the lock: there are 32 ports to each process, and nearly all are empty. */
static bool has_mail(const struct parcel_router *router, uint32_t process, uint32_t port)
{
    return __atomic_load_n(&router->shared->endpoints[process].ports[port].count, __ATOMIC_ACQUIRE);
}

/*
 * Whether one more of a queue is sent, when `count` have been: as far as there is credit or, for `all`, as many as may
 * have been there at the beginning. A tile that keeps filling the queue does not keep the board here.
 */
static bool may_send(const struct parcel_router *router, uint32_t process, bool all, uint32_t count, uint32_t depth)
{
    return all ? count < depth : router->credit[process] < CREDIT;
}

static void drain_ports(struct parcel_router *router, uint32_t process, bool all)
{
    struct net *net = router->net;
    struct mail mail;

    for (uint32_t port = 0; port < PORT_MAX; port++)
        for (uint32_t count = 0; has_mail(router, process, port) && may_send(router, process, all, count, MAIL_DEPTH) &&
                                 mailbox_take(router->shared, process, port, &mail); count++) {
            struct parcel parcel = {PARCEL_MAIL, (uint8_t)mail.from, (uint8_t)port, (uint8_t)net->host, 0, mail.size,
                                    0};

            router->credit[process]++;
            route(router, process, &parcel, mail.bytes);
        }
}

static void drain_portals(struct parcel_router *router, uint32_t process, bool all)
{
    struct endpoint *endpoint = &router->shared->endpoints[process];
    struct net *net = router->net;
    uint8_t bytes[PAGE_SIZE];

    for (uint32_t port = 0; port < PORTAL_MAX; port++)
        for (uint32_t count = 0; may_send(router, process, all, count, PIECE_DEPTH); count++) {
            struct portal *portal = &endpoint->portals[port];
            struct parcel parcel = {PARCEL_PIECE, (uint8_t)portal->from, (uint8_t)port, (uint8_t)net->host, 0, 0, 0};

            parcel.size = portal_take_piece(router->shared, process, port, bytes);
            if (!parcel.size)
                break;
            router->credit[process]++;
            route(router, process, &parcel, bytes);
        }
}

static void drain_signals(struct parcel_router *router, uint32_t process)
{
    struct endpoint *endpoint = &router->shared->endpoints[process];

    for (uint32_t sync = 0; sync < SYNC_MAX; sync++)
        for (uint32_t from = 0; from < PROCESS_MAX; from++) {
            struct parcel parcel = {PARCEL_SIGNAL, (uint8_t)from, (uint8_t)sync, (uint8_t)router->net->host, 0, 0, 0};

            if (!__atomic_load_n(&endpoint->signals[sync][from], __ATOMIC_ACQUIRE))
                continue;
            endpoint_lock(endpoint);
            parcel.amount = endpoint->signals[sync][from];
            endpoint->signals[sync][from] = 0;
            endpoint_unlock(endpoint);
            if (parcel.amount)
                route(router, process, &parcel, nothing);
        }
}

static void drain(struct parcel_router *router, uint32_t process, bool all)
{
    drain_ports(router, process, all);
    drain_portals(router, process, all);
    drain_signals(router, process);
}

/* Also to processes that are leaving: the leader holds it until they have arrived. */
void router_announce_grants(struct parcel_router *router, uint32_t process)
{
    struct endpoint *endpoint = &router->shared->endpoints[process];

    for (uint32_t port = 0; port < PORTAL_MAX; port++) {
        struct portal *portal = &endpoint->portals[port];
        struct parcel parcel = {PARCEL_ALLOW, (uint8_t)process, (uint8_t)port, (uint8_t)router->net->host, 0, 0, 0};
        uint32_t to;

        endpoint_lock(endpoint);
        to = portal->from;
        if (portal->fresh && (!net_is_here(router->net, to) || router->transit[to] & TRANSIT_LEAVING)) {
            parcel.ticket = portal->ticket;
            parcel.amount = portal->allowed;
            portal->allowed = 0;
        }
        portal->fresh = false;
        endpoint_unlock(endpoint);
        if (parcel.amount)
            route(router, to, &parcel, nothing);
    }
}

static bool is_elsewhere(struct parcel_router *router, uint32_t process)
{
    if (process == CONSOLE_PROCESS)
        return router->net->host != 0;
    if (router->transit[process] & TRANSIT_LOADED)
        return false; /* the endpoint is the process's own by now */
    return shared_place(router->shared, process).state == PLACE_RUNNING && !net_is_here(router->net, process);
}

void router_flush(struct parcel_router *router)
{
    for (uint32_t process = 0; process < PROCESS_MAX; process++)
        if (is_elsewhere(router, process))
            drain(router, process, true);
}

bool router_is_behind(const struct parcel_router *router)
{
    for (uint32_t process = 0; process < PROCESS_MAX; process++)
        if (router->credit[process] > FLUSHED)
            return true;
    return false;
}

size_t router_count_bytes(const struct queue *queue)
{
    size_t size = 0;

    for (const struct kept *kept = queue->first; kept; kept = kept->next)
        size += sizeof(kept->parcel) + kept->parcel.size;
    return size;
}

void router_clear(struct parcel_router *router, uint32_t process)
{
    router_forget(&router->pending[process]);
    router_forget(&router->held[process]);
    router->credit[process] = 0;
    router->closed[process] = false;
}

void router_serve(struct parcel_router *router)
{
    for (uint32_t process = 0; process < PROCESS_MAX; process++) {
        if (is_elsewhere(router, process) && !(router->transit[process] & TRANSIT_EXPECTED))
            drain(router, process, false);
        else if (net_is_here(router->net, process))
            router_announce_grants(router, process);
        if (process == CONSOLE_PROCESS || net_is_here(router->net, process))
            deliver_pending(router, process);
    }
}

void router_mark(struct parcel_router *router, uint32_t process, enum transit transit, bool on)
{
    router->transit[process] = (uint8_t)(on ? router->transit[process] | transit : router->transit[process] & ~transit);
}

void router_release(struct parcel_router *router, uint32_t process, uint32_t host)
{
    struct queue *held = &router->held[process];

    for (const struct kept *kept = held->first; kept; kept = kept->next)
        if (host == 0)
            deliver(router, process, &kept->parcel, kept->bytes);
        else
            channel_send_parts(net_channel(router->net, host), FRAME_PARCEL, process, host, &kept->parcel,
                               sizeof(kept->parcel), kept->bytes, kept->parcel.size);
    router_forget(held);
}

static void on_parcel(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    struct parcel_router *router = context;
    struct parcel parcel;

    (void)from;
    if (head->size < sizeof(parcel))
        return;
    memcpy(&parcel, payload, sizeof(parcel));
    if (parcel.size != head->size - sizeof(parcel) || !router_is_valid(&parcel))
        return;
    if (router->net->host != 0 &&
        (net_is_here(router->net, head->process) || router->transit[head->process] & TRANSIT_EXPECTED))
        deliver(router, head->process, &parcel, payload + sizeof(parcel));
    else
        route(router, head->process, &parcel, payload + sizeof(parcel));
}

static void on_delivered(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    (void)from, (void)payload;
    acknowledge(context, head->process, head->host);
}

static void on_host_gone(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    (void)from, (void)head, (void)payload;
    router_reset_credit(context);
}

void router_init(struct parcel_router *router, struct net *net, const struct router_events *events)
{
    router->net = net;
    router->shared = net->shared;
    router->events = *events;
    net_on_frame(net, FRAME_PARCEL, on_parcel, router);
    net_on_frame(net, FRAME_DELIVERED, on_delivered, router);
    net_on_frame(net, FRAME_GONE, on_host_gone, router);
}
