/* See sim.h. */
#include "sim.h"

struct world world;

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
