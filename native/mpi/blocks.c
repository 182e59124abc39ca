#include "blocks.h"

#include <stdlib.h>

/* A copy of each block, as arriving ones take its place. */
static struct room *copy_blocks(const struct levels *at, const struct blocks *blocks, int *error)
{
    struct room *rooms = calloc((size_t)at->size, sizeof *rooms);

    *error = rooms ? 0 : NO_MEMORY;
    for (int rank = 0; rank < at->size && !*error; rank++) {
        int count = count_of(blocks, rank);

        if (!make_room(&rooms[rank], count, blocks->type))
            *error = NO_MEMORY;
        else if (count)
            *error = copy_elements(address_of(blocks, rank), rooms[rank].at, count, blocks->type, at->rank, at->across);
    }
    return rooms;
}

static void free_copies(const struct levels *at, struct room *rooms)
{
    for (int rank = 0; rooms && rank < at->size; rank++)
        free(rooms[rank].base);
    free(rooms);
}

int exchange_blocks(const struct levels *at, const struct blocks *sent, const struct blocks *got)
{
    struct room *copies = NULL;
    struct flight flight = {0};
    int error = 0;

    if (!sent)
        copies = copy_blocks(at, got, &error);
    for (int i = 0; i < at->size && !error; i++)
        error = receive_block(&flight, got, (at->rank + at->size - i) % at->size, at->across);
    for (int i = 0; i < at->size && !error; i++) {
        int rank = (at->rank + i) % at->size;

        if (sent)
            error = send_block(&flight, sent, rank, at->across);
        else
            error = send_bytes(&flight, copies[rank].at, count_of(got, rank), got->type, length_of(got, rank), rank,
                               at->across);
    }
    error = end_flight(&flight, error);
    free_copies(at, copies);
    return error;
}

int gather_blocks(const struct levels *at, word sent, int count, word type, const struct blocks *blocks, int root)
{
    struct flight flight = {0};
    int error = 0;

    if (at->rank != root)
        return end_flight(&flight,
                          send_bytes(&flight, sent, count, type, bytes_of(count, type), root, at->across));
    for (int rank = 0; rank < at->size && !error; rank++)
        if (rank != root || sent != mpi.in_place)
            error = receive_block(&flight, blocks, rank, at->across);
    if (!error && sent != mpi.in_place)
        error = send_bytes(&flight, sent, count, type, bytes_of(count, type), root, at->across);
    return end_flight(&flight, error);
}
