/* A move at its destination; see move_engine.h. */
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "../kernel/address_space.h"
#include "../kernel/process.h"
#include "../shared/fault_injection.h"
#include "destination.h"
#include "move_side.h"

/* A process of another host is put into its final slot by our board. */
static uint32_t source_slot(const struct move *move)
{
    uint32_t slot = place_unpack(move->place).slot;

    return slot < TILE_MAX ? slot : move->slot;
}

/* Page faults now do not add to the downtime. */
int destination_reserve(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->side->move;
    int error = address_space_map(tile, move->slot, shared_area(tile->shared, source_slot(move)));

    side_set_deadline(tile, RESERVED_MS);
    if (error < 0) {
        tile->side->wrong = strerror(-error);
        return EXIT_FAILED;
    }
    madvise(shared_image(tile->shared, source_slot(move)), USER_SIZE, MADV_POPULATE_READ);
    madvise(shared_area(tile->shared, source_slot(move)), sizeof(struct user_area), MADV_POPULATE_READ);
    fault_point("destination:reserved");
    if (move->mode == MODE_PRECOPY) {
        atomic_store(&move->wanted, 1);
        side_change_step(tile, move, MOVE_ASKED, MOVE_TRACKING);
    } else {
        if (move->mode != MODE_FAITHFUL)
            process_wake_poller(tile);
        side_change_step(tile, move, MOVE_ASKED, MOVE_RESERVED);
    }
    return EXIT_NEXT;
}

static uint32_t count_pages(const uint64_t written[WRITTEN_WORDS])
{
    uint32_t count = 0;

    for (int word = 0; word < WRITTEN_WORDS; word++)
        count += (uint32_t)__builtin_popcountll(written[word]);
    return count;
}

/* Copies the marked pages and clears the marks. Returns their bytes. */
static uint64_t copy_written(struct tile *tile, struct move *move)
{
    const uint8_t *from = shared_image(tile->shared, source_slot(move));
    uint8_t *to = shared_image(tile->shared, move->slot);
    uint64_t bytes = 0;

    for (uint32_t word = 0; word < WRITTEN_WORDS; word++)
        for (; move->written[word]; move->written[word] &= move->written[word] - 1) {
            size_t offset = (word * 64 + (size_t)__builtin_ctzll(move->written[word])) * PAGE_SIZE;

            if (to != from)
                memcpy(to + offset, from + offset, PAGE_SIZE);
            bytes += PAGE_SIZE;
        }
    return bytes;
}

/* Frozen when few pages are left, or no fewer than the last time. */
int destination_round(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->side->move;
    uint32_t count = count_pages(move->written), before = tile->side->pieces;
    bool enough = count <= ROUND_PAGES || (move->rounds > 1 && count * 4 > before * 3) || move->rounds >= ROUND_MAX;

    side_set_deadline(tile, RESERVED_MS);
    tile->side->pieces = count;
    if (move->tracking == TRACKING_NONE) { /* every page has to be copied while the process is frozen */
        enough = true;
    } else if (!enough || count > ROUND_PAGES) {
        move->before += copy_written(tile, move);
        move->rounds++;
        fault_point("destination:round");
    }
    if (enough) {
        process_wake_poller(tile);
        side_change_step(tile, move, MOVE_TRACKING, MOVE_RESERVED);
    } else {
        atomic_fetch_add(&move->wanted, 1);
        shared_ring(tile->shared, move->from);
    }
    return EXIT_NEXT;
}

int destination_copy(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->side->move;
    const struct user_area *from = shared_area(tile->shared, source_slot(move));
    struct user_area *to = shared_area(tile->shared, move->slot);
    uint32_t used = from->used & ((1u << THREAD_MAX) - 1);

    if (move->mode == MODE_HANDOFF || to == from)
        return EXIT_NEXT;
    memcpy(to->head, from->head, sizeof(to->head));
    move->bytes += sizeof(to->head);
    for (int slot = 0; slot < THREAD_MAX; slot++)
        if (used >> slot & 1) {
            memcpy(&to->threads[slot], &from->threads[slot], sizeof(to->threads[slot]));
            move->bytes += sizeof(to->threads[slot]);
        }
    return EXIT_NEXT;
}

int destination_check(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->side->move;
    struct user_area *area = shared_area(tile->shared, move->slot);

    if (fault_is("destination:flip"))
        area->threads[0].context.rbx ^= 1;
    tile->side->wrong = !side_is_remote(tile) && area->epoch != place_unpack(move->place).epoch
                           ? "it is of another epoch"
                           : user_area_check(area, move->process, tile->shared->xfeatures, tile->shared->xsize);
    if (tile->side->wrong)
        return EXIT_FAILED;
    return move->mode == MODE_FAITHFUL ? EXIT_ELSE : EXIT_NEXT;
}

int destination_pages(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->side->move;
    const uint8_t *from = shared_image(tile->shared, source_slot(move));
    uint8_t *to = shared_image(tile->shared, move->slot);
    struct extent extents[THREAD_MAX + 2];
    int count = move->mode == MODE_DIRECT ? user_area_list_extents(shared_area(tile->shared, move->slot), extents) : 0;

    fault_point("destination:pages");
    for (int i = 0; from != to && i < count; i++) {
        memcpy(to + extents[i].offset, from + extents[i].offset, extents[i].size);
        move->bytes += extents[i].size;
    }
    if (move->mode == MODE_PRECOPY)
        move->bytes += copy_written(tile, move);
    return EXIT_NEXT;
}

static void call_off(struct tile *tile, uint32_t from)
{
    struct move *move = tile->side->move;

    if (atomic_load(&move->step) != from)
        return;
    snprintf(move->why, sizeof(move->why), "%s", tile->side->wrong);
    side_change_step(tile, move, from, MOVE_ABORTED);
}

int destination_commit(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->side->move;
    struct place place = {.state = PLACE_RUNNING, .slot = (uint8_t)move->slot, .tile = (uint8_t)tile->index};

    if (move->mode == MODE_FAITHFUL)
        move->bytes = (uint64_t)tile->side->pieces * PAGE_SIZE;
    move->copied = shared_now();
    fault_point("destination:copied");
    if (!shared_commit(tile->shared, tile->side->process, tile->side->place, place)) {
        tile->side->wrong = "the source has taken the process back";
        return EXIT_FAILED;
    }
    move->committed = shared_now();
    fault_point("destination:committed");
    return EXIT_NEXT;
}

int destination_adopt(void *context)
{
    struct tile *tile = context;
    struct move *move = tile->side->move;

    atomic_fetch_add(&tile->shared->locations[tile->side->process].moves, 1);
    side_change_step(tile, move, MOVE_FROZEN, MOVE_DONE); /* first: the core that resumes the last thread rings the board */
    atomic_store(&tile->shared->tiles[tile->index].polling, 0); /* the bell is for the master from here on */
    process_adopt(tile, tile->side->process, shared_place(tile->shared, tile->side->process), move);
    if (side_is_remote(tile))
        shared_ring(tile->shared, tile->index); /* for a core that sleeps on the bell */
    return EXIT_NEXT;
}

int destination_discard(void *context)
{
    struct tile *tile = context;

    for (uint32_t step = MOVE_ASKED; step <= MOVE_FROZEN; step++)
        call_off(tile, step);
    eventfd_write(tile->event_fd, 1);
    return EXIT_NEXT;
}
