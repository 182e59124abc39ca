/* See mirror.h. */
#include "mirror.h"

#include <string.h>

#include "arrival.h"
#include "departure.h"

void mirror_handle(struct mirror *mirror, const struct frame_head *head, const uint8_t *payload)
{
    uint32_t process = head->process;
    struct offer offer;
    struct want want;
    struct runs runs;

    switch (head->kind) {
    case FRAME_OFFER:
        if (head->size == sizeof(offer))
            arrival_offer(mirror, process, memcpy(&offer, payload, sizeof(offer)));
        break;
    case FRAME_WANT:
        if (head->size == sizeof(want))
            departure_want(mirror, process, memcpy(&want, payload, sizeof(want)));
        break;
    case FRAME_RUNS:
        if (head->size == sizeof(runs))
            departure_runs(mirror, process, memcpy(&runs, payload, sizeof(runs)));
        break;
    case FRAME_PAGES:
        arrival_pages(mirror, process, payload, head->size);
        break;
    case FRAME_PIECE:
        arrival_piece(mirror, process, payload, head->size);
        break;
    case FRAME_STATE:
        arrival_state(mirror, process, payload, head->size);
        break;
    default:
        break;
    }
}

void mirror_serve(struct mirror *mirror)
{
    for (uint32_t to = 0; to < mirror->window->tile_count; to++) {
        struct move *move = &mirror->window->moves[to];

        if (record_is_unused(move))
            continue;
        if (record_is_departure(mirror, move))
            departure_serve(mirror, move);
        else if (record_is_arrival(mirror, move))
            arrival_serve(mirror, move);
    }
}

void mirror_clear(struct mirror *mirror, uint32_t process)
{
    relay_clear(mirror->relay, process);
    record_set_arrival(mirror, process, NULL);
}

static void on_frame(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    const struct order order = net_read_order(head, payload);

    (void)from;
    switch (head->kind) {
    case FRAME_START:
        arrival_start(context, head->process, payload, head->size);
        break;
    case FRAME_MIGRATE:
        departure_begin(context, head->process, &order);
        break;
    case FRAME_GO:
        arrival_go(context, head->process);
        break;
    case FRAME_COMMITTED:
        departure_committed(context, head->process);
        break;
    default: /* ABORT */
        departure_abort(context, head->process, &order);
        arrival_abort(context, head->process, &order);
    }
}

void mirror_init(struct mirror *mirror, struct relay *relay, const struct passage *passages)
{
    static const enum frame_kind kinds[] = {FRAME_START, FRAME_MIGRATE, FRAME_GO, FRAME_COMMITTED, FRAME_ABORT};

    mirror->net = relay->net;
    mirror->relay = relay;
    mirror->window = relay->window;
    mirror->passages = passages;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        net_on_frame(mirror->net, kinds[i], on_frame, mirror);
}
