/* See protocol.h. */
#include "protocol.h"

#include <string.h>

struct world world;

void protocol_describe(void)
{
    fprintf(stderr, "%s, step %u of seed %lu; the entry: epoch %u, owner %d\n", world.scene, world.steps,
            (unsigned long)world.seed, world.entry.epoch, world.entry.owner);
    for (int i = 0; i < TILES; i++) {
        const struct tile *tile = &world.tiles[i];

        fprintf(stderr, "tile %d%s: epoch %u%s%s; %s of move %u, at %s\n", i, tile->dead ? " (dead)" : "", tile->epoch,
                tile->runs ? ", runs" : "", tile->frozen ? ", frozen" : "",
                !tile->active ? "no part" : tile->source ? "source" : "destination", tile->move,
                move_graph.tasks[tile->tasks.ready[tile->tasks.first]].name);
    }
}

uint32_t draw(uint32_t below)
{
    world.random ^= world.random << 13;
    world.random ^= world.random >> 7;
    world.random ^= world.random << 17;
    return (uint32_t)(world.random >> 33) % below;
}

bool chance(uint32_t percent)
{
    return draw(100) < percent;
}

bool swap(uint32_t epoch, int owner)
{
    if (world.entry.epoch != epoch)
        return false;
    world.entry.epoch++;
    world.entry.owner = owner;
    return true;
}

void tell(const struct tile *tile, enum fact fact, uint32_t count)
{
    struct message message = {tile->peer, tile->number, fact, tile->move, count, tile->state};
    int copies = world.calm ? 1 : chance(world.bad) ? 0 : chance(world.bad) ? 2 : 1;

    while (copies-- && world.in_flight < FLIGHT)
        world.flight[world.in_flight++] = message;
}

bool heard(const struct tile *tile, enum fact fact, uint32_t count)
{
    return tile->heard_move == tile->move && tile->heard[fact] >= count;
}

void deliver(void)
{
    struct message message;
    struct tile *tile;
    uint32_t which;

    if (!world.in_flight)
        return;
    which = draw((uint32_t)world.in_flight);
    message = world.flight[which];
    world.flight[which] = world.flight[--world.in_flight];
    tile = &world.tiles[message.to];
    if (message.epoch < tile->heard_move || tile->dead)
        return;
    if (message.epoch > tile->heard_move) {
        tile->heard_move = message.epoch;
        memset(tile->heard, 0, sizeof(tile->heard));
    }
    if (tile->heard[message.fact] < message.count)
        tile->heard[message.fact] = message.count;
    tile->heard_from = message.from;
    if (message.fact == FROZEN)
        tile->heard_image = message.image;
}
