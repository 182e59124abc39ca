/* See process.h. */
#include "process.h"

#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "address_space.h"
#include "kernel_call.h"
#include "message_calls.h"
#include "scheduler.h"

static void take_cores(struct tile *tile)
{
    tile->frozen = true;
    for (uint32_t index = 1; index < tile->shared->core_count; index++)
        if (tile_core(tile, index)->thread >= 0)
            pthread_kill(tile_core(tile, index)->pthread, PREEMPT_SIGNAL);
}

void process_request_freeze(struct tile *tile)
{
    pthread_mutex_lock(&tile->lock);
    tile->freezing_for_move = true;
    take_cores(tile);
    pthread_mutex_unlock(&tile->lock);
}

void process_wake_poller(struct tile *tile)
{
    pthread_mutex_lock(&tile->lock);
    tile->poll_wanted = true;
    for (uint32_t index = 1; index < tile->shared->core_count; index++)
        if (tile_core(tile, index)->idle) {
            pthread_cond_signal(&tile_core(tile, index)->wake);
            break;
        }
    pthread_mutex_unlock(&tile->lock);
}

void process_freeze(struct tile *tile)
{
    pthread_mutex_lock(&tile->lock);
    take_cores(tile);
    while (tile->running > 0)
        pthread_cond_wait(&tile->quiet, &tile->lock);
    pthread_mutex_unlock(&tile->lock);
}

void process_thaw(struct tile *tile)
{
    pthread_mutex_lock(&tile->lock);
    tile->frozen = tile->freezing_for_move = false;
    sched_wake_cores(tile);
    pthread_mutex_unlock(&tile->lock);
}

/* Messages that came while the process was between tiles have woken no thread. */
static void retry_messages(struct tile *tile)
{
    operations_advance(tile);
    sched_retry(tile, WAIT_SYNC, -1, THREAD_MAX);
    sched_retry(tile, WAIT_MAIL, -1, THREAD_MAX);
    sched_retry(tile, WAIT_SEND, -1, THREAD_MAX);
}

#ifdef WHERRY_TILE_JOINED
/* For measurements: the process's User Area lies among the kernel's data, so it cannot be moved. */
static struct user_area *area_of(struct tile *tile, uint32_t slot)
{
    static _Alignas(PAGE_SIZE) struct user_area joined; /* as the shared ones, and XRSTOR faults else */

    joined = *shared_area(tile->shared, slot);
    return &joined;
}
#elif defined(WHERRY_TILE_MIXED)
/* For measurements: nothing of the process is apart. Threads lie between the kernel's cores, and none on a page. */
static struct user_area *area_of(struct tile *tile, uint32_t slot)
{
    const uint8_t *from = (const uint8_t *)shared_area(tile->shared, slot);

    memcpy(tile->mixed.head, from, PAGE_SIZE);
    for (int thread = 0; thread < THREAD_MAX; thread++)
        memcpy(&tile->mixed.threads[thread], from + (1 + thread) * PAGE_SIZE, THREAD_SIZE);
    return &tile->mixed;
}
#else
static struct user_area *area_of(struct tile *tile, uint32_t slot)
{
    return shared_area(tile->shared, slot);
}
#endif

void process_adopt(struct tile *tile, uint32_t process, struct place place, struct move *move)
{
    struct user_area *area = area_of(tile, place.slot);
    bool calling = atomic_load(&tile->shared->locations[process].end); /* a call that the master executes */

    pthread_mutex_lock(&tile->lock);
    tile->process = process;
    tile->place = place_pack(place);
    tile->image = shared_image(tile->shared, place.slot);
    tile->area = area;
    area->epoch = place.epoch;
    tile->ending = tile->stepping = false;
    tile->status = 0;
    tile->why[0] = 0;
    tile->frozen = true;
    for (int slot = 0; move && slot < THREAD_MAX; slot++)
        if (area->used >> slot & 1 && area->threads[slot].state == THREAD_WAITING &&
            area->threads[slot].wait == WAIT_MOVE)
            call_complete(tile, slot, 0);
    for (int slot = 0; slot < THREAD_MAX; slot++)
        calling = calling || (area->used >> slot & 1 && area->threads[slot].state == THREAD_CALLING);
    tile->resuming = 0;
    tile->resumed_move = move;
    for (int slot = area->ready_first; move && slot >= 0; slot = area->threads[slot].next)
        tile->resuming |= (uint32_t)user_area_may_run(area, slot) << slot;
    if (move && !tile->resuming) { /* every thread waits: the process has resumed without running one */
        atomic_store(&move->first, shared_now());
        atomic_store(&move->all, shared_now());
        tile->resumed_move = NULL;
        eventfd_write(tile->event_fd, 1);
    }
    retry_messages(tile);
    tile->frozen = false;
    sched_wake_cores(tile);
    pthread_mutex_unlock(&tile->lock);
    if (calling)
        shared_ring(tile->shared, tile->index);
}

void process_release(struct tile *tile)
{
    pthread_mutex_lock(&tile->lock);
    tile->area = NULL;
    tile->image = NULL;
    tile->frozen = tile->freezing_for_move = false;
    tile->resuming = 0;
    tile->resumed_move = NULL;
    tile->ending = false;
    atomic_store(&tile->shared->tiles[tile->index].wish, 0);
    atomic_store(&tile->shared->tiles[tile->index].answer, 0);
    pthread_mutex_unlock(&tile->lock);
    address_space_unmap();
}

void process_end(struct tile *tile, int status, const char *why)
{
    struct location *location = &tile->shared->locations[tile->process];
    struct place place = place_unpack(tile->place);

    location->status = status;
    snprintf(location->why, sizeof(location->why), "%s", why);
    place.state = PLACE_ENDED;
    shared_commit(tile->shared, tile->process, tile->place, place); /* first, or the tile would start it again */
    process_release(tile);
    for (uint32_t index = 0; index < tile->shared->tile_count; index++)
        shared_ring(tile->shared, index); /* threads that wait for room in its ports must look again */
    eventfd_write(tile->event_fd, 1);
}
