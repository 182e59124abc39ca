/* See scheduler.h. */
#include "scheduler.h"

#include <pthread.h>

void sched_wake_cores(struct tile *tile)
{
    struct user_area *area = tile->area;
    uint32_t unmet = 0;

    if (tile->frozen)
        return;
    for (int slot = area->ready_first; slot >= 0; slot = area->threads[slot].next)
        unmet |= (uint32_t)user_area_may_run(area, slot) << slot;
    for (uint32_t index = 1; unmet && index < tile->shared->core_count; index++) {
        struct core *core = tile_core(tile, index);

        if (!core->idle && tile->polling_core != core->index)
            continue;
        for (int slot = area->ready_first; slot >= 0; slot = area->threads[slot].next)
            if (unmet >> slot & 1 && area->threads[slot].affinity >> index & 1) {
                unmet &= ~(1u << slot);
                if (core->idle)
                    pthread_cond_signal(&core->wake);
                break;
            }
    }
    if (unmet && !tile->ticking)
        shared_ring(tile->shared, tile->index);
}

int sched_retry(struct tile *tile, enum wait_kind kind, int64_t object, int count)
{
    struct user_area *area = tile->area;
    int found = 0;

    for (int slot = 0; slot < THREAD_MAX && found < count; slot++) {
        struct thread *thread = &area->threads[slot];

        if (!(area->used >> slot & 1) || thread->state != THREAD_WAITING || thread->wait != kind ||
            (object >= 0 && thread->object != object))
            continue;
        user_area_make_ready(area, slot);
        found++;
    }
    if (found)
        sched_wake_cores(tile);
    return found;
}
