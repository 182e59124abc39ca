/* A move at its source; see move_engine.h. */
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "../kernel/process.h"
#include "../shared/fault_injection.h"
#include "move_side.h"
#include "source.h"

/* Every used page: all pages that a frozen process would send, and whole stacks, as their ends move. */
static void mark_all(const struct user_area *area, uint64_t written[WRITTEN_WORDS])
{
    for (uint32_t page = 0; page < USER_SIZE / PAGE_SIZE; page++) {
        uint32_t offset = page * PAGE_SIZE, slot = (USER_SIZE - 1 - offset) / STACK_SIZE;
        bool used = offset < area->end || (offset >= ARGUMENTS_OFFSET && offset < STACKS_OFFSET);

        if (offset >= STACKS_OFFSET)
            used = area->used >> slot & 1 && (offset - STACKS_OFFSET) % STACK_SIZE;
        if (used)
            written[page / 64] |= 1ull << page % 64;
    }
}

int source_scan(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->side->move;

    memset(move->written, 0, sizeof(move->written));
    if (atomic_load(&move->scanned) == 0) {
        move->tracking = dirty_tracking_begin(&tile->dirty_tracking, tile->image, tile->area->rodata_end);
        mark_all(tile->area, move->written);
    } else {
        dirty_tracking_scan(&tile->dirty_tracking, move->written);
    }
    fault_point("source:scanned");
    atomic_fetch_add(&move->scanned, 1);
    shared_ring(tile->shared, move->to);
    return EXIT_NEXT;
}

int source_freeze(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->side->move;

    if (!tile->freezing_for_move) {
        fault_point("source:reserved");
        move->freezing = shared_now();
        process_request_freeze(tile);
    }
    return __atomic_load_n(&tile->running, __ATOMIC_ACQUIRE) ? EXIT_AGAIN : EXIT_NEXT;
}

int source_seal(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->side->move;

    if (move->mode == MODE_PRECOPY && move->tracking == TRACKING_NONE)
        mark_all(tile->area, move->written);
    else if (move->mode == MODE_PRECOPY)
        dirty_tracking_scan(&tile->dirty_tracking, move->written);
    user_area_seal(tile->area);
    move->frozen = shared_now();
    if (tile->ending || !side_change_step(tile, move, MOVE_RESERVED, MOVE_FROZEN)) {
        move->frozen = 0;
        if (tile->ending)
            snprintf(move->why, sizeof(move->why), "the process has ended");
        side_change_step(tile, move, MOVE_RESERVED, MOVE_ABORTED);
        process_thaw(tile);
        shared_ring(tile->shared, tile->index);
        eventfd_write(tile->event_fd, 1);
        return EXIT_FAILED;
    }
    fault_point("source:frozen");
    return EXIT_NEXT;
}

int source_await(void *context)
{
    return side_may_go_on(context, MOVE_FROZEN) ? EXIT_AGAIN : EXIT_NEXT;
}

/* The first swap of the location entry decides: when the destination has committed, ours fails. */
int source_take_back(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->side->move;
    struct place place = place_unpack(tile->place);

    if (!shared_commit(tile->shared, tile->process, tile->place, place)) {
        process_release(tile);
        eventfd_write(tile->event_fd, 1);
        return EXIT_NEXT;
    }
    place.epoch++;
    tile->place = place_pack(place);
    tile->area->epoch = place.epoch;
    if (atomic_load(&move->step) == MOVE_FROZEN)
        snprintf(move->why, sizeof(move->why), "the destination died or did not answer");
    side_change_step(tile, move, MOVE_FROZEN, MOVE_ABORTED);
    process_thaw(tile);
    shared_ring(tile->shared, tile->index); /* calls and messages have waited for the thaw */
    eventfd_write(tile->event_fd, 1);
    return EXIT_NEXT;
}
