/* A move at its source; see moving.h. */
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "faults.h"
#include "flow.h"
#include "process.h"
#include "source.h"

/* Every page that has been used: what a frozen process would send, and whole stacks, as their ends move. */
static void mark_all(const struct uarea *area, uint64_t written[WRITTEN_WORDS])
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
    struct move *move = tile->flow.move;

    memset(move->written, 0, sizeof(move->written));
    if (atomic_load(&move->scanned) == 0) {
        move->tracking = tracking_begin(&tile->flow.tracking, tile->image, tile->area->rodata_end);
        mark_all(tile->area, move->written);
    } else {
        tracking_scan(&tile->flow.tracking, move->written);
    }
    fault_point("source:scanned");
    atomic_fetch_add(&move->scanned, 1);
    window_ring(tile->window, move->to);
    return EXIT_NEXT;
}

int source_freeze(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->flow.move;

    if (!tile->giving) {
        fault_point("source:reserved");
        move->freezing = window_now();
        process_ask_freeze(tile);
    }
    return __atomic_load_n(&tile->running, __ATOMIC_ACQUIRE) ? EXIT_AGAIN : EXIT_NEXT;
}

int source_seal(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->flow.move;

    if (move->mode == MODE_PRECOPY && move->tracking == TRACKING_NONE)
        mark_all(tile->area, move->written);
    else if (move->mode == MODE_PRECOPY)
        tracking_scan(&tile->flow.tracking, move->written);
    uarea_seal(tile->area);
    move->frozen = window_now();
    if (tile->ending || !flow_step(tile, move, MOVE_RESERVED, MOVE_FROZEN)) {
        move->frozen = 0;
        if (tile->ending)
            snprintf(move->why, sizeof(move->why), "the process has ended");
        flow_step(tile, move, MOVE_RESERVED, MOVE_ABORTED);
        process_thaw(tile);
        window_ring(tile->window, tile->index);
        eventfd_write(tile->event_fd, 1);
        return EXIT_FAILED;
    }
    fault_point("source:frozen");
    return EXIT_NEXT;
}

int source_await(void *context)
{
    return flow_may_go_on(context, MOVE_FROZEN) ? EXIT_AGAIN : EXIT_NEXT;
}

/* The first swap of the location entry decides: when the destination has committed, ours fails. */
int source_take_back(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->flow.move;
    struct place place = place_unpack(tile->place);

    if (!window_commit(tile->window, tile->process, tile->place, place)) {
        process_release(tile);
        eventfd_write(tile->event_fd, 1);
        return EXIT_NEXT;
    }
    place.epoch++;
    tile->place = place_pack(place);
    tile->area->epoch = place.epoch;
    if (atomic_load(&move->step) == MOVE_FROZEN)
        snprintf(move->why, sizeof(move->why), "the destination died or did not answer");
    flow_step(tile, move, MOVE_FROZEN, MOVE_ABORTED);
    process_thaw(tile);
    window_ring(tile->window, tile->index); /* calls and messages have waited for the thaw */
    eventfd_write(tile->event_fd, 1);
    return EXIT_NEXT;
}
