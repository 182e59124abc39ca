/*
 * The portal of `faithful`: tasks 4 to 12 of the paper's Figure 2. Both sides go through the same groups of pages, the
 * whole User Area first, because it lists which pages of the other groups are used. The receiver allows each piece, the
 * sender puts it there, the receiver takes it.
 */
#include <string.h>

#include "../shared/fault_injection.h"
#include "move_side.h"
#include "portal_transfer.h"

#define FAULT_PIECE 3 /* in the midst of it */

enum group { GROUP_AREA, GROUP_IMAGE, GROUP_ARGUMENTS, GROUP_STACKS, GROUP_COUNT };

static const uint32_t sizes[GROUP_COUNT] = {
    1 + THREAD_MAX, ARGUMENTS_OFFSET / PAGE_SIZE, 1, THREAD_MAX *STACK_SIZE / PAGE_SIZE,
};

static struct user_area *area_of(struct tile *tile)
{
    return tile->side->source ? tile->area : shared_area(tile->shared, tile->side->move->slot);
}

/* State handler: the next group. */
int portal_transfer_group(void *context)
{
    struct tile *tile = context;
    struct move_side *side = tile->side;

    if (side->group == GROUP_AREA + 1 && !side->source && side->at) {
        side->at = NULL; /* once: the next groups rely on the area */
        return EXIT_ELSE;
    }
    if (side->group == GROUP_COUNT)
        return side->source ? EXIT_OVER : EXIT_END;
    side->piece = 0;
    return EXIT_NEXT;
}

/* `piece` is the one after the current. */
int portal_transfer_loop(void *context)
{
    struct tile *tile = context;
    struct move_side *side = tile->side;

    if (side->piece == sizes[side->group]) {
        side->group++;
        return EXIT_END;
    }
    side->piece++;
    return side->source ? EXIT_NEXT : EXIT_ELSE;
}

static bool is_in_stack(const struct user_area *area, uint32_t offset)
{
    int slot = (int)((USER_SIZE - 1 - offset) / STACK_SIZE);

    return area->used >> slot & 1 && offset >= user_area_stack(area, slot).offset;
}

/* Write and read: the page of this piece, when there is something in it. */
int portal_transfer_is_used(void *context)
{
    struct tile *tile = context;
    struct move_side *side = tile->side;
    struct user_area *area = area_of(tile);
    uint32_t offset = (side->piece - 1) * PAGE_SIZE;
    uint8_t *image = side->source ? tile->image : shared_image(tile->shared, side->move->slot);
    bool used = true;

    if (side->group == GROUP_IMAGE) {
        used = offset < area->end;
    } else if (side->group == GROUP_ARGUMENTS) {
        offset += ARGUMENTS_OFFSET;
    } else if (side->group == GROUP_STACKS) {
        offset += STACKS_OFFSET;
        used = is_in_stack(area, offset);
    }
    side->at = (side->group == GROUP_AREA ? (uint8_t *)area : image) + offset;
    return used ? EXIT_ELSE : EXIT_NEXT;
}

int portal_transfer_put(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->side->move;

    if (atomic_load(&move->allow) == tile->side->pieces)
        return side_may_go_on(tile, MOVE_FROZEN) ? EXIT_AGAIN : EXIT_FAILED;
    memcpy(move->piece, tile->side->at, PAGE_SIZE);
    if (tile->side->pieces == FAULT_PIECE)
        fault_point("source:piece");
    atomic_store(&move->sent, ++tile->side->pieces);
    shared_ring(tile->shared, move->to);
    return EXIT_NEXT;
}

int portal_transfer_sent(void *context)
{
    struct tile *tile = context;

    if (atomic_load(&tile->side->move->taken) == tile->side->pieces)
        return EXIT_NEXT;
    return side_may_go_on(tile, MOVE_FROZEN) ? EXIT_AGAIN : EXIT_FAILED;
}

int portal_transfer_allow(void *context)
{
    struct tile *tile = context;

    atomic_store(&tile->side->move->allow, tile->side->pieces + 1);
    shared_ring(tile->shared, tile->side->move->from);
    return EXIT_NEXT;
}

/* In the paper's terms the read is started here; ours needs nothing but the place, which is known. */
int portal_transfer_place(void *context)
{
    (void)context;
    return EXIT_NEXT;
}

int portal_transfer_received(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->side->move;

    if (atomic_load(&move->sent) == tile->side->pieces) {
        if (side_may_go_on(tile, MOVE_FROZEN))
            return EXIT_AGAIN;
        tile->side->wrong = "the source stopped sending";
        return EXIT_FAILED;
    }
    memcpy(tile->side->at, move->piece, PAGE_SIZE);
    if (tile->side->pieces == FAULT_PIECE)
        fault_point("destination:piece");
    atomic_store(&move->taken, ++tile->side->pieces);
    shared_ring(tile->shared, move->from);
    return EXIT_NEXT;
}
