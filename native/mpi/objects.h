/*
 * objects: properties of the program's datatypes, communicators and persistent requests, by their handles. Asked for
 * when first needed, which is local, and forgotten when the program frees any, as a library uses handles again.
 */
#ifndef WHERRY_MPI_OBJECTS_H
#define WHERRY_MPI_OBJECTS_H

#include "levels.h"
#include "library.h"

#include <stdbool.h>
#include <stdint.h>

struct communicator {
    word handle;
    word object;     /* the same, as C has it */
    int size;        /* of the group that ranks in calls name */
    unsigned place;  /* in the table of the page */
    bool inter;
    const int *world; /* by rank, the rank in MPI_COMM_WORLD or -1; NULL: the same */
    bool untold;      /* there is no list of these, as others take all room: its ranks count as outside */
    bool was_asked;   /* for its levels */
    struct levels *levels;
};

struct request {
    word handle;
    int64_t bytes;
    int peer;       /* its rank in MPI_COMM_WORLD, or -1 */
    unsigned place; /* of its communicator */
};

/* Bytes of so many elements; INT64_MAX: too many to say, or that is no type. */
int64_t bytes_of(int64_t count, word type) HIDDEN;
void forget_sizes(void) HIDDEN;

/* A communicator's handle in C. */
word object_of(word handle) HIDDEN;
/* NULL when there is no memory. The caller holds the lock, if there is one. */
struct communicator *communicator_of(word handle) HIDDEN;
void forget_communicator(word handle) HIDDEN;

/* Its rank in MPI_COMM_WORLD; -1: it is not in it, or no rank at all. */
static inline int world_rank(const struct communicator *comm, int rank)
{
    if (!comm || comm->untold || rank < 0 || rank >= comm->size)
        return -1;
    return comm->world ? comm->world[rank] : rank;
}

/* Replaces an entry of the same handle; without room for more it is dropped. */
void keep_request(struct request request) HIDDEN;
/* NULL: it was not kept. */
const struct request *request_of(word handle) HIDDEN;
void drop_request(word handle) HIDDEN;

#endif
