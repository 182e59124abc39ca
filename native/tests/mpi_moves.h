/* Numbers drawn at random, and maps of sites as root writes them, for programs that compare collectives. */
#ifndef MPI_MOVES_H
#define MPI_MOVES_H

#include "map.h"
#include "page.h"

#include <stdbool.h>
#include <stdint.h>

static int rank, size; /* in MPI_COMM_WORLD */
static const struct anchor *anchor;

static unsigned next(uint64_t *from, unsigned limit)
{
    *from = *from * 6364136223846793005U + 1442695040888963407U;
    return (unsigned)(*from >> 33) % limit;
}

/* Acts as root does when a node has moved, with a map of the epoch that all ranks draw alike. */
static void hear(uint64_t epoch, bool broken)
{
    size_t each = (sizeof(struct told) + sizeof(uint16_t) * (size_t)size + 7) / 8 * 8;
    struct told *told = (struct told *)(uintptr_t)(anchor->address + epoch % 2 * each);
    uint64_t from = epoch * 77, check = 0xcbf29ce484222325U;

    told->epoch = epoch;
    for (int i = 0; i < size; i++) /* a third of them have all ranks at one site, another third at several for sure */
        told->sites[i] = epoch % 3 == 2 && i < 3 ? i > 0 : (uint16_t)next(&from, 1 + epoch % 3);
    for (size_t i = 0; i < sizeof epoch; i++)
        check = (check ^ ((const unsigned char *)&epoch)[i]) * 0x100000001b3U;
    for (size_t i = 0; i < sizeof(uint16_t) * (size_t)size; i++)
        check = (check ^ ((const unsigned char *)told->sites)[i]) * 0x100000001b3U;
    told->check = check + broken;
}

#endif
