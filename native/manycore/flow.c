/* See flow.h. */
#include "flow.h"

bool flow_is_alive(const struct tile *tile, uint32_t index)
{
    return atomic_load(&tile->window->tiles[index].alive);
}

bool flow_step(struct tile *tile, struct move *move, uint32_t from, uint32_t to)
{
    bool changed = atomic_compare_exchange_strong(&move->step, &from, to);

    window_ring(tile->window, tile->flow.peer);
    return changed;
}

bool flow_is_undecided(const struct tile *tile)
{
    return atomic_load(&tile->window->locations[tile->flow.process].word) == tile->flow.place;
}

bool flow_may_go_on(struct tile *tile, uint32_t step)
{
    return atomic_load(&tile->flow.move->step) == step && flow_is_alive(tile, tile->flow.peer) &&
           flow_is_undecided(tile) && window_now() < tile->flow.deadline;
}

bool flow_is_far(const struct tile *tile)
{
    return tile->flow.move && !window_is_here(tile->window, tile->flow.peer);
}

void flow_set_deadline(struct tile *tile, int ms)
{
    /* Between hosts the leader decides, and the board tells the decision: board/frames.h. */
    tile->flow.deadline = flow_is_far(tile) ? INT64_MAX : window_now() + ms * 1000000ll;
}
