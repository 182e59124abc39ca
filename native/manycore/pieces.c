/*
 * The portal of `faithful`: tasks 4 to 12 of the paper's Figure 2. Both sides go through the same groups of pages, the
 * whole User Area first, because it tells which pages of the other groups are used. The receiver allows each piece, the
 * sender puts it there, the receiver takes it.
 */
#include <string.h>

#include "faults.h"
#include "flow.h"
#include "pieces.h"

#define FAULT_PIECE 3 /* in the midst of it */

enum group { GROUP_AREA, GROUP_IMAGE, GROUP_ARGUMENTS, GROUP_STACKS, GROUP_COUNT };

static const uint32_t sizes[GROUP_COUNT] = {
    1 + THREAD_MAX, ARGUMENTS_OFFSET / PAGE_SIZE, 1, THREAD_MAX *STACK_SIZE / PAGE_SIZE,
};

static struct uarea *area_of(struct tile *tile)
{
    return tile->flow.source ? tile->area : window_area(tile->window, tile->flow.move->slot);
}

/* State handler: the next group. */
int pieces_group(void *context)
{
    struct tile *tile = context;
    struct flow *flow = &tile->flow;

    if (flow->group == GROUP_AREA + 1 && !flow->source && flow->at) {
        flow->at = NULL; /* once: what follows relies on the area */
        return EXIT_ELSE;
    }
    if (flow->group == GROUP_COUNT)
        return flow->source ? EXIT_OVER : EXIT_END;
    flow->piece = 0;
    return EXIT_NEXT;
}

/* `piece` is the one after the current. */
int pieces_loop(void *context)
{
    struct tile *tile = context;
    struct flow *flow = &tile->flow;

    if (flow->piece == sizes[flow->group]) {
        flow->group++;
        return EXIT_END;
    }
    flow->piece++;
    return flow->source ? EXIT_NEXT : EXIT_ELSE;
}

static bool is_in_stack(const struct uarea *area, uint32_t offset)
{
    int slot = (int)((USER_SIZE - 1 - offset) / STACK_SIZE);

    return area->used >> slot & 1 && offset >= uarea_stack(area, slot).offset;
}

/* Write and read: the page of this piece, when there is something in it. */
int pieces_is_used(void *context)
{
    struct tile *tile = context;
    struct flow *flow = &tile->flow;
    struct uarea *area = area_of(tile);
    uint32_t offset = (flow->piece - 1) * PAGE_SIZE;
    uint8_t *image = flow->source ? tile->image : window_image(tile->window, flow->move->slot);
    bool used = true;

    if (flow->group == GROUP_IMAGE) {
        used = offset < area->end;
    } else if (flow->group == GROUP_ARGUMENTS) {
        offset += ARGUMENTS_OFFSET;
    } else if (flow->group == GROUP_STACKS) {
        offset += STACKS_OFFSET;
        used = is_in_stack(area, offset);
    }
    flow->at = (flow->group == GROUP_AREA ? (uint8_t *)area : image) + offset;
    return used ? EXIT_ELSE : EXIT_NEXT;
}

int pieces_put(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->flow.move;

    if (atomic_load(&move->allow) == tile->flow.pieces)
        return flow_may_go_on(tile, MOVE_FROZEN) ? EXIT_AGAIN : EXIT_FAILED;
    memcpy(move->piece, tile->flow.at, PAGE_SIZE);
    if (tile->flow.pieces == FAULT_PIECE)
        fault_point("source:piece");
    atomic_store(&move->sent, ++tile->flow.pieces);
    window_ring(tile->window, move->to);
    return EXIT_NEXT;
}

int pieces_sent(void *context)
{
    struct tile *tile = context;

    if (atomic_load(&tile->flow.move->taken) == tile->flow.pieces)
        return EXIT_NEXT;
    return flow_may_go_on(tile, MOVE_FROZEN) ? EXIT_AGAIN : EXIT_FAILED;
}

int pieces_allow(void *context)
{
    struct tile *tile = context;

    atomic_store(&tile->flow.move->allow, tile->flow.pieces + 1);
    window_ring(tile->window, tile->flow.move->from);
    return EXIT_NEXT;
}

/* In the paper's terms the read is started here; ours needs nothing but the place, which is known. */
int pieces_place(void *context)
{
    (void)context;
    return EXIT_NEXT;
}

int pieces_received(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->flow.move;

    if (atomic_load(&move->sent) == tile->flow.pieces) {
        if (flow_may_go_on(tile, MOVE_FROZEN))
            return EXIT_AGAIN;
        tile->flow.wrong = "the source stopped sending";
        return EXIT_FAILED;
    }
    memcpy(tile->flow.at, move->piece, PAGE_SIZE);
    if (tile->flow.pieces == FAULT_PIECE)
        fault_point("destination:piece");
    atomic_store(&move->taken, ++tile->flow.pieces);
    window_ring(tile->window, move->from);
    return EXIT_NEXT;
}
