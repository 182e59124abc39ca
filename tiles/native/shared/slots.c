/* See slots.h. */
#include "slots.h"

bool slots_is_in_hand(const struct shared_memory *shared, uint32_t to)
{
    for (uint32_t tile = 0; tile < shared->tile_count; tile++)
        if (atomic_load(&shared->tiles[tile].alive) && atomic_load(&shared->tiles[tile].in_hand) == 1 + to)
            return true;
    return false;
}

bool slots_is_free(struct shared_memory *shared, uint32_t tile)
{
    if (tile >= shared->tile_count || !atomic_load(&shared->tiles[tile].alive) ||
        atomic_load(&shared->moves[tile].step) != MOVE_NONE || slots_is_in_hand(shared, tile))
        return false;
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct place place = shared_place(shared, process);

        if (place.state == PLACE_RUNNING && place.tile == tile)
            return false;
    }
    return true;
}

bool slots_reserve(struct shared_memory *shared, uint32_t *slot)
{
    uint32_t used = 0;

    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct place place = shared_place(shared, process);

        if (place.state == PLACE_RUNNING && place.slot < TILE_MAX)
            used |= 1u << place.slot;
    }
    for (uint32_t tile = 0; tile < shared->tile_count; tile++)
        if ((atomic_load(&shared->moves[tile].step) != MOVE_NONE || slots_is_in_hand(shared, tile)) &&
            shared->moves[tile].slot < TILE_MAX)
            used |= 1u << shared->moves[tile].slot;
    for (*slot = 0; *slot < TILE_MAX; ++*slot)
        if (!(used >> *slot & 1))
            return true;
    return false;
}
