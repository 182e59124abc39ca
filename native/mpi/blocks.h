/*
 * blocks: the elements of each rank for each, or from it, in one buffer: by ranks, or with counts and displacements.
 */
#ifndef WHERRY_MPI_BLOCKS_H
#define WHERRY_MPI_BLOCKS_H

#include "exchange.h"
#include "objects.h"

#include <stddef.h>
#include <stdint.h>

enum { MOST_PARTNERS = 128 }; /* of more, each with a message for each, the library makes fewer messages */

struct blocks {
    word buffer, type;
    int64_t size;     /* bytes of an element */
    ptrdiff_t extent;
    int count;        /* of each rank, or: */
    const int *counts, *displacements;
};

static inline struct blocks blocks_of(word buffer, int count, word counts, word displacements, word type)
{
    return (struct blocks){.buffer = buffer, .type = type, .size = bytes_of(1, type), .extent = extent_of(type),
                           .count = count, .counts = (const int *)counts, .displacements = (const int *)displacements};
}

static inline int count_of(const struct blocks *blocks, int rank)
{
    return blocks->counts ? blocks->counts[rank] : blocks->count;
}

/* Bytes of a rank's; INT64_MAX: too many to say. */
static inline int64_t length_of(const struct blocks *blocks, int rank)
{
    int64_t bytes;

    return __builtin_mul_overflow(count_of(blocks, rank), blocks->size, &bytes) ? INT64_MAX : bytes;
}

static inline word address_of(const struct blocks *blocks, int rank)
{
    int64_t before = blocks->counts ? blocks->displacements[rank] : (int64_t)rank * blocks->count;

    return blocks->buffer + (word)(before * blocks->extent);
}

/* A rank's, to it or from it. */
static inline int send_block(struct flight *flight, const struct blocks *blocks, int rank, word comm)
{
    return send_bytes(flight, address_of(blocks, rank), count_of(blocks, rank), blocks->type, length_of(blocks, rank),
                      rank, comm);
}

static inline int receive_block(struct flight *flight, const struct blocks *blocks, int rank, word comm)
{
    return receive_bytes(flight, address_of(blocks, rank), count_of(blocks, rank), blocks->type,
                         length_of(blocks, rank), rank, comm);
}

/* The bytes of a rank's. */
static inline int take_block(const struct levels *at, const struct blocks *blocks, int rank, char *to)
{
    return bytes_from(to, address_of(blocks, rank), count_of(blocks, rank), blocks->type, length_of(blocks, rank),
                      at->across);
}

static inline int put_block(const struct levels *at, const struct blocks *blocks, int rank, const char *from)
{
    return bytes_into(address_of(blocks, rank), count_of(blocks, rank), blocks->type, from, length_of(blocks, rank),
                      at->across);
}

/*
 * Each rank's block to it, and its own from each, all at once: bytes cross the link once, and nobody waits for another
 * one's turn. `sent` NULL: the blocks to send are where the received ones are to be. For MOST_PARTNERS ranks at most.
 */
int exchange_blocks(const struct levels *at, const struct blocks *sent, const struct blocks *got) HIDDEN;

/* Each rank's elements to the root, all at once. `blocks` are the root's; there MPI_IN_PLACE is nothing to send. */
int gather_blocks(const struct levels *at, word sent, int count, word type, const struct blocks *blocks, int root)
    HIDDEN;

#endif
