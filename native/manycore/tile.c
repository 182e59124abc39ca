/* See tile.h: the user region of a tile, and the process that lies in it. */
#include "tile.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#define USER ((uint8_t *)(uintptr_t)USER_BASE)

/* Text is never writable here and data never executable; the page below each stack cannot be touched. */
static int protect(const struct uarea *area)
{
    if (mprotect(USER, area->text_end, PROT_READ | PROT_EXEC) < 0)
        return -errno;
    if (area->rodata_end > area->text_end &&
        mprotect(USER + area->text_end, area->rodata_end - area->text_end, PROT_READ) < 0)
        return -errno;
    for (int slot = 0; slot < THREAD_MAX; slot++)
        if (mprotect(USER + USER_SIZE - (slot + 1) * STACK_SIZE, PAGE_SIZE, PROT_NONE) < 0)
            return -errno;
    return 0;
}

int tile_map_user(struct tile *tile, uint32_t slot, const struct uarea *area)
{
    int error;

    if (area->text_end == 0 || area->text_end > area->rodata_end || area->rodata_end > USER_SIZE)
        return -EBADMSG;
    if (mmap(USER, USER_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, WINDOW_FD,
             (off_t)window_image_offset(slot)) == MAP_FAILED)
        return -errno;
    error = protect(area);
    /* Page faults now are page faults that are not in the downtime. */
    madvise(USER, USER_SIZE, MADV_POPULATE_READ);
    madvise(window_image(tile->window, slot), USER_SIZE, MADV_POPULATE_WRITE);
    madvise(USER + area->rodata_end, ARGUMENTS_OFFSET - area->rodata_end, MADV_POPULATE_WRITE);
    for (int stack = 0; stack < THREAD_MAX; stack++)
        madvise(USER + USER_SIZE - (stack + 1) * STACK_SIZE + PAGE_SIZE, STACK_SIZE - PAGE_SIZE, MADV_POPULATE_WRITE);
    madvise(window_area(tile->window, slot), sizeof(struct uarea), MADV_POPULATE_WRITE);
    if (error < 0)
        tile_unmap_user(tile);
    return error;
}

void tile_unmap_user(struct tile *tile)
{
    (void)tile;
    munmap(USER, USER_SIZE);
}

void tile_wake_cores(struct tile *tile)
{
    struct uarea *area = tile->area;
    uint32_t unmet = 0;

    if (tile->frozen)
        return;
    for (int slot = area->ready_first; slot >= 0; slot = area->threads[slot].next)
        unmet |= (uint32_t)uarea_may_run(area, slot) << slot;
    for (uint32_t index = 1; unmet && index < tile->window->core_count; index++) {
        struct core *core = &tile->cores[index];

        if (!core->idle && tile->away != core->index)
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
        window_ring(tile->window, tile->index);
}

int tile_retry(struct tile *tile, enum wait_kind kind, int64_t object, int count)
{
    struct uarea *area = tile->area;
    int found = 0;

    for (int slot = 0; slot < THREAD_MAX && found < count; slot++) {
        struct thread *thread = &area->threads[slot];

        if (!(area->used >> slot & 1) || thread->state != THREAD_WAITING || thread->wait != kind ||
            (object >= 0 && thread->object != object))
            continue;
        uarea_make_ready(area, slot);
        found++;
    }
    if (found)
        tile_wake_cores(tile);
    return found;
}

static void take_cores(struct tile *tile)
{
    tile->frozen = true;
    for (uint32_t index = 1; index < tile->window->core_count; index++)
        if (tile->cores[index].thread >= 0)
            pthread_kill(tile->cores[index].pthread, PREEMPT_SIGNAL);
}

void tile_ask_freeze(struct tile *tile)
{
    pthread_mutex_lock(&tile->lock);
    tile->giving = true;
    take_cores(tile);
    pthread_mutex_unlock(&tile->lock);
}

void tile_send_core(struct tile *tile)
{
    pthread_mutex_lock(&tile->lock);
    tile->errand = true;
    for (uint32_t index = 1; index < tile->window->core_count; index++)
        if (tile->cores[index].idle) {
            pthread_cond_signal(&tile->cores[index].wake);
            break;
        }
    pthread_mutex_unlock(&tile->lock);
}

void tile_freeze(struct tile *tile)
{
    pthread_mutex_lock(&tile->lock);
    take_cores(tile);
    while (tile->running > 0)
        pthread_cond_wait(&tile->quiet, &tile->lock);
    pthread_mutex_unlock(&tile->lock);
}

void tile_thaw(struct tile *tile)
{
    pthread_mutex_lock(&tile->lock);
    tile->frozen = tile->giving = false;
    tile_wake_cores(tile);
    pthread_mutex_unlock(&tile->lock);
}

/* Messages that came while nobody ran the process have rung nobody. */
static void retry_messages(struct tile *tile)
{
    tile_advance_operations(tile);
    tile_retry(tile, WAIT_SYNC, -1, THREAD_MAX);
    tile_retry(tile, WAIT_MAIL, -1, THREAD_MAX);
    tile_retry(tile, WAIT_SEND, -1, THREAD_MAX);
}

#ifdef WHERRY_TILE_JOINED
/* For measurements: what is known of the process lies among the kernel's data, so it cannot be moved. */
static struct uarea *area_of(struct tile *tile, uint32_t slot)
{
    static struct uarea joined;

    joined = *window_area(tile->window, slot);
    return &joined;
}
#else
static struct uarea *area_of(struct tile *tile, uint32_t slot)
{
    return window_area(tile->window, slot);
}
#endif

void tile_adopt(struct tile *tile, uint32_t process, struct place place, struct move *move)
{
    struct uarea *area = area_of(tile, place.slot);
    bool calling = atomic_load(&tile->window->locations[process].end); /* there is something for the master */

    pthread_mutex_lock(&tile->lock);
    tile->process = process;
    tile->place = place_pack(place);
    tile->image = window_image(tile->window, place.slot);
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
        tile->resuming |= (uint32_t)uarea_may_run(area, slot) << slot;
    if (move && !tile->resuming) { /* all wait: nothing has to run for the process to be there */
        atomic_store(&move->first, window_now());
        atomic_store(&move->all, window_now());
        tile->resumed_move = NULL;
        eventfd_write(tile->event_fd, 1);
    }
    retry_messages(tile);
    tile->frozen = false;
    tile_wake_cores(tile);
    pthread_mutex_unlock(&tile->lock);
    if (calling)
        window_ring(tile->window, tile->index);
}

void tile_release(struct tile *tile)
{
    pthread_mutex_lock(&tile->lock);
    tile->area = NULL;
    tile->image = NULL;
    tile->frozen = tile->giving = false;
    tile->resuming = 0;
    tile->resumed_move = NULL;
    tile->ending = false;
    atomic_store(&tile->window->tiles[tile->index].wish, 0);
    atomic_store(&tile->window->tiles[tile->index].answer, 0);
    pthread_mutex_unlock(&tile->lock);
    tile_unmap_user(tile);
}

void tile_end_process(struct tile *tile, int status, const char *why)
{
    struct location *location = &tile->window->locations[tile->process];
    struct place place = place_unpack(tile->place);

    location->status = status;
    snprintf(location->why, sizeof(location->why), "%s", why);
    place.state = PLACE_ENDED;
    window_commit(tile->window, tile->process, tile->place, place); /* first, or it would look like one to be started */
    tile_release(tile);
    for (uint32_t index = 0; index < tile->window->tile_count; index++)
        window_ring(tile->window, index); /* who waits for room in its ports waits in vain */
    eventfd_write(tile->event_fd, 1);
}
