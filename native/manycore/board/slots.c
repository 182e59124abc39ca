/* See slots.h. */
#include "slots.h"

bool slots_is_in_hand(const struct window *window, uint32_t to)
{
    for (uint32_t tile = 0; tile < window->tile_count; tile++)
        if (atomic_load(&window->tiles[tile].alive) && atomic_load(&window->tiles[tile].in_hand) == 1 + to)
            return true;
    return false;
}

bool slots_is_free(struct window *window, uint32_t tile)
{
    if (tile >= window->tile_count || !atomic_load(&window->tiles[tile].alive) ||
        atomic_load(&window->moves[tile].step) != MOVE_NONE || slots_is_in_hand(window, tile))
        return false;
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct place place = window_place(window, process);

        if (place.state == PLACE_RUNNING && place.tile == tile)
            return false;
    }
    return true;
}

bool slots_reserve(struct window *window, uint32_t *slot)
{
    uint32_t used = 0;

    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct place place = window_place(window, process);

        if (place.state == PLACE_RUNNING && place.slot < TILE_MAX)
            used |= 1u << place.slot;
    }
    for (uint32_t tile = 0; tile < window->tile_count; tile++)
        if ((atomic_load(&window->moves[tile].step) != MOVE_NONE || slots_is_in_hand(window, tile)) &&
            window->moves[tile].slot < TILE_MAX)
            used |= 1u << window->moves[tile].slot;
    for (*slot = 0; *slot < TILE_MAX; ++*slot)
        if (!(used >> *slot & 1))
            return true;
    return false;
}
