/*
 * A move, as the masters of the two tiles do it. The name server has asked for it in window.moves[destination].
 *
 *   name server        source                      destination
 *     ASKED  ------------------------------------->  maps its user region
 *                      freezes every core  <-------  RESERVED
 *                      seals the User Area
 *                      FROZEN  ------------------->  takes the pages (see the modes)
 *                                                    checks the User Area
 *                                                    swaps the location entry: the commit
 *                      forgets the process  <------  runs it; DONE
 *
 * Invariant: a tile runs the process only while the location entry names it. The source keeps the frozen process
 * until the entry names another, or it has itself swapped the entry for one of a later epoch, after which the
 * destination's swap must fail. So whoever dies or stays silent, there is one owner, or the name server, which does
 * the same swap for a tile that died, reports the process lost.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "faults.h"
#include "tile.h"

#define SLICE_MS 50        /* how often who waits looks whether the other side is alive */
#define RESERVED_MS 10000  /* the destination waits for the source to freeze */
#define FROZEN_MS 5000     /* the source waits for the commit */

static bool is_alive(const struct tile *tile, uint32_t index)
{
    return atomic_load(&tile->window->tiles[index].alive);
}

static bool step_from(struct move *move, uint32_t from, uint32_t to)
{
    bool changed = atomic_compare_exchange_strong(&move->step, &from, to);

    window_wake(&move->step);
    window_wake(&move->allow); /* the sender of pieces may wait there */
    return changed;
}

/* Whether the location entry still says what the move began with: no commit, no end of the process, no loss. */
static bool is_undecided(const struct tile *tile, const struct move *move)
{
    /* The source has its own copy: the record may already be of another move when the source looks. */
    uint32_t process = tile->area ? tile->process : move->process;
    uint64_t place = tile->area ? tile->place : move->place;

    return atomic_load(&tile->window->locations[process].word) == place;
}

/* Waits until *word is not `seen`. Returns false when there is no sense in it any more, or time is over. */
static bool wait_beside(struct tile *tile, struct move *move, _Atomic uint32_t *word, uint32_t seen, uint32_t step,
                        uint32_t peer, int64_t deadline)
{
    while (atomic_load(word) == seen) {
        if (atomic_load(&move->step) != step || !is_alive(tile, peer) || !is_undecided(tile, move) ||
            window_now() > deadline)
            return false;
        window_wait(word, seen, SLICE_MS);
    }
    return true;
}

/* One piece of `faithful`, in the portal: the receiver allows it, the sender puts it there, the receiver takes it. */
static bool portal_send(struct tile *tile, struct move *move, uint32_t *piece, const uint8_t *from, size_t size,
                        int64_t deadline)
{
    for (size_t at = 0; at < size; at += PAGE_SIZE) {
        if (!wait_beside(tile, move, &move->allow, *piece, MOVE_FROZEN, move->to, deadline))
            return false;
        memcpy(move->piece, from + at, PAGE_SIZE);
        atomic_store(&move->sent, ++*piece);
        window_wake(&move->sent);
    }
    return true;
}

static bool portal_receive(struct tile *tile, struct move *move, uint32_t *piece, uint8_t *to, size_t size,
                           int64_t deadline)
{
    for (size_t at = 0; at < size; at += PAGE_SIZE) {
        atomic_store(&move->allow, *piece + 1);
        window_wake(&move->allow);
        if (!wait_beside(tile, move, &move->sent, *piece, MOVE_FROZEN, move->from, deadline))
            return false;
        memcpy(to + at, move->piece, PAGE_SIZE);
        ++*piece;
    }
    return true;
}

/* Both sides go through the same list: the whole User Area first, because it tells what follows. */
static void send_pieces(struct tile *tile, struct move *move, int64_t deadline)
{
    struct extent extents[THREAD_MAX + 2];
    int count = uarea_list_extents(tile->area, extents);
    uint32_t piece = 0;
    bool goes_on = portal_send(tile, move, &piece, (const uint8_t *)tile->area, sizeof(*tile->area), deadline);

    for (int i = 0; goes_on && i < count; i++)
        goes_on = portal_send(tile, move, &piece, tile->image + extents[i].offset, extents[i].size, deadline);
}

static const char *check(const struct move *move, const struct uarea *area, const struct window *window)
{
    if (fault_is("destination:flip"))
        ((struct uarea *)area)->threads[0].context.rbx ^= 1;
    if (area->epoch != place_unpack(move->place).epoch)
        return "it is of another epoch";
    return uarea_check(area, move->process, window->xfeatures, window->xsize);
}

static void copy_extents(struct move *move, struct window *window, uint32_t from, const struct uarea *area)
{
    struct extent extents[THREAD_MAX + 2];
    int count = uarea_list_extents(area, extents);

    for (int i = 0; i < count; i++) {
        memcpy(window_image(window, move->slot) + extents[i].offset, window_image(window, from) + extents[i].offset,
               extents[i].size);
        move->bytes += extents[i].size;
    }
}

static void copy_area(struct move *move, const struct uarea *from, struct uarea *to)
{
    uint32_t used = from->used & ((1u << THREAD_MAX) - 1);

    memcpy(to->head, from->head, sizeof(to->head));
    move->bytes += sizeof(to->head);
    for (int slot = 0; slot < THREAD_MAX; slot++)
        if (used >> slot & 1) {
            memcpy(&to->threads[slot], &from->threads[slot], sizeof(to->threads[slot]));
            move->bytes += sizeof(to->threads[slot]);
        }
}

/* Takes the process into our slot. Returns NULL or what is wrong. */
static const char *receive_pages(struct tile *tile, struct move *move)
{
    struct window *window = tile->window;
    struct uarea *area = window_area(window, move->slot);
    uint32_t from = place_unpack(move->place).slot, piece = 0;
    int64_t deadline = window_now() + FROZEN_MS * 1000000ll;
    struct extent extents[THREAD_MAX + 2];
    const char *wrong;
    int count;

    if (move->mode == MODE_HANDOFF)
        return check(move, area, window);
    if (move->mode == MODE_DIRECT) {
        copy_area(move, window_area(window, from), area);
        wrong = check(move, area, window);
        if (!wrong)
            copy_extents(move, window, from, area);
        return wrong;
    }
    if (!portal_receive(tile, move, &piece, (uint8_t *)area, sizeof(*area), deadline))
        return "the source stopped sending";
    wrong = check(move, area, window);
    if (wrong)
        return wrong;
    count = uarea_list_extents(area, extents);
    for (int i = 0; i < count; i++)
        if (!portal_receive(tile, move, &piece, window_image(window, move->slot) + extents[i].offset, extents[i].size,
                            deadline))
            return "the source stopped sending";
    move->bytes = (uint64_t)piece * PAGE_SIZE;
    return NULL;
}

static void abort_move(struct tile *tile, struct move *move, uint32_t from, const char *why)
{
    snprintf(move->why, sizeof(move->why), "%s", why);
    step_from(move, from, MOVE_ABORTED);
    eventfd_write(tile->event_fd, 1);
}

/* The destination, from FROZEN on. The user region is mapped. */
static bool take(struct tile *tile, struct move *move)
{
    struct place place = {.state = PLACE_RUNNING, .slot = (uint8_t)move->slot, .tile = (uint8_t)tile->index};
    const char *wrong = receive_pages(tile, move);

    if (wrong) {
        abort_move(tile, move, MOVE_FROZEN, wrong);
        return false;
    }
    move->copied = window_now();
    fault_point("destination:copied");
    if (!window_commit(tile->window, move->process, move->place, place)) {
        abort_move(tile, move, MOVE_FROZEN, "the source has taken the process back");
        return false;
    }
    move->committed = window_now();
    fault_point("destination:committed");
    place.epoch = place_unpack(move->place).epoch + 1;
    atomic_fetch_add(&tile->window->locations[move->process].moves, 1);
    tile_adopt(tile, move->process, place, move);
    step_from(move, MOVE_FROZEN, MOVE_DONE);
    eventfd_write(tile->event_fd, 1);
    return true;
}

void moving_receive(struct tile *tile)
{
    struct move *move = &tile->window->moves[tile->index];
    uint32_t from = place_unpack(move->place).slot;
    int64_t deadline = window_now() + RESERVED_MS * 1000000ll;
    int error;

    if (atomic_load(&move->step) != MOVE_ASKED || tile->area)
        return;
    error = tile_map_user(tile, move->slot, window_area(tile->window, from));
    if (error < 0) {
        abort_move(tile, move, MOVE_ASKED, strerror(-error));
        return;
    }
    madvise(window_image(tile->window, from), USER_SIZE, MADV_POPULATE_READ);
    madvise(window_area(tile->window, from), sizeof(struct uarea), MADV_POPULATE_READ);
    fault_point("destination:reserved");
    step_from(move, MOVE_ASKED, MOVE_RESERVED);
    window_ring(tile->window, move->from);
    if (!wait_beside(tile, move, &move->step, MOVE_RESERVED, MOVE_RESERVED, move->from, deadline))
        abort_move(tile, move, MOVE_RESERVED,
                   is_undecided(tile, move) ? "the source did not freeze" : "the process has ended");
    if (atomic_load(&move->step) != MOVE_FROZEN || !take(tile, move))
        tile_unmap_user(tile);
}

/*
 * The end of it at the source. When the destination has not committed, who swaps the entry first owns the process;
 * when it has, our swap fails like any that comes too late.
 */
static void take_back(struct tile *tile, struct move *move)
{
    struct place place = place_unpack(tile->place);

    if (!window_commit(tile->window, tile->process, tile->place, place)) {
        tile_release(tile);
        return;
    }
    place.epoch++;
    tile->place = place_pack(place);
    tile->area->epoch = place.epoch;
    if (atomic_load(&move->step) == MOVE_FROZEN)
        snprintf(move->why, sizeof(move->why), "the destination died or did not answer");
    step_from(move, MOVE_FROZEN, MOVE_ABORTED);
    tile_thaw(tile);
    eventfd_write(tile->event_fd, 1);
}

static void give(struct tile *tile, struct move *move)
{
    int64_t deadline;

    move->freezing = window_now();
    tile_freeze(tile);
    uarea_seal(tile->area);
    move->frozen = window_now();
    if (!step_from(move, MOVE_RESERVED, MOVE_FROZEN)) {
        move->frozen = 0;
        tile_thaw(tile);
        eventfd_write(tile->event_fd, 1);
        return;
    }
    fault_point("source:frozen");
    deadline = window_now() + FROZEN_MS * 1000000ll;
    if (move->mode == MODE_FAITHFUL)
        send_pieces(tile, move, deadline);
    wait_beside(tile, move, &move->step, MOVE_FROZEN, MOVE_FROZEN, move->to, deadline);
    take_back(tile, move);
}

void moving_send(struct tile *tile)
{
    for (uint32_t to = 0; to < tile->window->tile_count; to++) {
        struct move *move = &tile->window->moves[to];

        if (tile->area && move->from == tile->index && move->process == tile->process && !tile->ending &&
            atomic_load(&move->step) == MOVE_RESERVED && move->place == tile->place) {
            fault_point("source:reserved");
            give(tile, move);
        }
    }
}
