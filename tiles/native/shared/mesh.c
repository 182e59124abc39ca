/* See mesh.h. */
#include "mesh.h"

#include <errno.h>
#include <stdlib.h>

int mesh_declare(struct shared_memory *shared, const char *size, uint64_t hop_ns, uint32_t tiles)
{
    char *end;
    unsigned long width = strtoul(size, &end, 10), height = *end == 'x' ? strtoul(end + 1, &end, 10) : 0;

    if (*end || width < 1 || height < 1 || width > TILE_MAX || height > TILE_MAX || width * height < tiles ||
        hop_ns < 1 || hop_ns > HOP_MOST_NS)
        return -EINVAL;
    shared->mesh_width = (uint32_t)width;
    shared->mesh_height = (uint32_t)height;
    shared->hop_ns = (uint32_t)hop_ns;
    return 0;
}

bool mesh_is_declared(const struct shared_memory *shared)
{
    return shared->mesh_width > 0;
}

static uint32_t between(uint32_t one, uint32_t other)
{
    return one > other ? one - other : other - one;
}

uint32_t mesh_hops(const struct shared_memory *shared, uint32_t one, uint32_t other)
{
    uint32_t width = shared->mesh_width;

    return width ? between(one % width, other % width) + between(one / width, other / width) : 0;
}

int64_t mesh_due(struct shared_memory *shared, uint32_t from, uint32_t to)
{
    struct place sender, reader;
    uint32_t hops;

    if (!shared->hop_ns || from == CONSOLE_PROCESS || to == CONSOLE_PROCESS)
        return 0;
    sender = shared_place(shared, from);
    reader = shared_place(shared, to);
    if (!shared_is_here(shared, sender.tile) || !shared_is_here(shared, reader.tile))
        return 0;
    hops = mesh_hops(shared, sender.tile - shared->first_tile, reader.tile - shared->first_tile);
    return hops ? shared_now() + (int64_t)hops * shared->hop_ns : 0;
}
