/* See move_proxy.h. */
#include "move_proxy.h"

#include <string.h>

#include "incoming_move.h"
#include "outgoing_move.h"

void proxy_handle(struct move_proxy *proxy, const struct frame_head *head, const uint8_t *payload)
{
    uint32_t process = head->process;
    struct offer offer;
    struct want want;
    struct runs runs;

    switch (head->kind) {
    case FRAME_OFFER:
        if (head->size == sizeof(offer))
            incoming_offer(proxy, process, memcpy(&offer, payload, sizeof(offer)));
        break;
    case FRAME_WANT:
        if (head->size == sizeof(want))
            outgoing_want(proxy, process, memcpy(&want, payload, sizeof(want)));
        break;
    case FRAME_RUNS:
        if (head->size == sizeof(runs))
            outgoing_runs(proxy, process, memcpy(&runs, payload, sizeof(runs)));
        break;
    case FRAME_PAGES:
        incoming_pages(proxy, process, payload, head->size);
        break;
    case FRAME_PIECE:
        incoming_piece(proxy, process, payload, head->size);
        break;
    case FRAME_STATE:
        incoming_state(proxy, process, payload, head->size);
        break;
    default:
        break;
    }
}

void proxy_serve(struct move_proxy *proxy)
{
    for (uint32_t to = 0; to < proxy->shared->tile_count; to++) {
        struct move *move = &proxy->shared->moves[to];

        if (record_is_unused(move))
            continue;
        if (record_is_outgoing(proxy, move))
            outgoing_serve(proxy, move);
        else if (record_is_incoming(proxy, move))
            incoming_serve(proxy, move);
    }
}

void proxy_clear(struct move_proxy *proxy, uint32_t process)
{
    router_clear(proxy->router, process);
    record_set_incoming(proxy, process, NULL);
}

static void on_frame(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    const struct order order = net_read_order(head, payload);

    (void)from;
    switch (head->kind) {
    case FRAME_START:
        incoming_start(context, head->process, payload, head->size);
        break;
    case FRAME_MIGRATE:
        outgoing_begin(context, head->process, &order);
        break;
    case FRAME_GO:
        incoming_go(context, head->process);
        break;
    case FRAME_COMMITTED:
        outgoing_committed(context, head->process);
        break;
    default: /* ABORT */
        outgoing_abort(context, head->process, &order);
        incoming_abort(context, head->process, &order);
    }
}

void proxy_init(struct move_proxy *proxy, struct parcel_router *router, const struct coordinated_move *coordinated)
{
    static const enum frame_kind kinds[] = {FRAME_START, FRAME_MIGRATE, FRAME_GO, FRAME_COMMITTED, FRAME_ABORT};

    proxy->net = router->net;
    proxy->router = router;
    proxy->shared = router->shared;
    proxy->coordinated = coordinated;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        net_on_frame(proxy->net, kinds[i], on_frame, proxy);
}
