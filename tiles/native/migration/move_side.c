/* See move_side.h. */
#include "move_side.h"

bool side_is_alive(const struct tile *tile, uint32_t index)
{
    return atomic_load(&tile->shared->tiles[index].alive);
}

bool side_change_step(struct tile *tile, struct move *move, uint32_t from, uint32_t to)
{
    bool changed = atomic_compare_exchange_strong(&move->step, &from, to);

    shared_ring(tile->shared, tile->side->peer);
    return changed;
}

bool side_is_undecided(const struct tile *tile)
{
    return atomic_load(&tile->shared->locations[tile->side->process].word) == tile->side->place;
}

bool side_may_go_on(struct tile *tile, uint32_t step)
{
    return atomic_load(&tile->side->move->step) == step && side_is_alive(tile, tile->side->peer) &&
           side_is_undecided(tile) && shared_now() < tile->side->deadline;
}

bool side_is_remote(const struct tile *tile)
{
    return tile->side->move && !shared_is_here(tile->shared, tile->side->peer);
}

void side_set_deadline(struct tile *tile, int ms)
{
    /* Between hosts the leader decides and the board passes its decision on: board/hosts/protocol.h. */
    tile->side->deadline = side_is_remote(tile) ? INT64_MAX : shared_now() + ms * 1000000ll;
}
