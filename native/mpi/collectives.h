/*
 * collectives: the collectives that cross the link between sites once.
 *
 * Each function does the whole collective, puts the return value into `result` and returns true, or returns false
 * before anything is done: then the library's own is called. Types and operators are handles of C; `handle` names the
 * communicator as the program does. Counts of all ranks and displacements are addresses of ints.
 */
#ifndef WHERRY_MPI_COLLECTIVES_H
#define WHERRY_MPI_COLLECTIVES_H

#include "exchange.h"

#include <stdbool.h>
#include <stdint.h>

bool levels_barrier(int *result, word handle) HIDDEN;
bool levels_bcast(int *result, word buffer, int64_t count, word type, int root, word handle) HIDDEN;
bool levels_reduce(int *result, word sent, word got, int64_t count, word type, word operator, int root, word handle)
    HIDDEN;
bool levels_allreduce(int *result, word sent, word got, int64_t count, word type, word operator, word handle) HIDDEN;

bool levels_reduce_scatter_block(int *result, word sent, word got, int count, word type, word operator,
                                 word handle) HIDDEN;
bool levels_reduce_scatter(int *result, word sent, word got, word counts, word type, word operator, word handle) HIDDEN;
bool levels_scan(int *result, word sent, word got, int count, word type, word operator, word handle) HIDDEN;
bool levels_exscan(int *result, word sent, word got, int count, word type, word operator, word handle) HIDDEN;

bool levels_gather(int *result, word sent, int count, word type, word got, int got_count, word got_type, int root,
                   word handle) HIDDEN;
bool levels_gatherv(int *result, word sent, int count, word type, word got, word counts, word displacements,
                    word got_type, int root, word handle) HIDDEN;
bool levels_scatter(int *result, word sent, int sent_count, word sent_type, word got, int count, word type, int root,
                    word handle) HIDDEN;
bool levels_scatterv(int *result, word sent, word counts, word displacements, word sent_type, word got, int count,
                     word type, int root, word handle) HIDDEN;
bool levels_allgather(int *result, word sent, int count, word type, word got, int got_count, word got_type, word handle)
    HIDDEN;
bool levels_allgatherv(int *result, word sent, int count, word type, word got, word counts, word displacements,
                       word got_type, word handle) HIDDEN;
bool levels_alltoall(int *result, word sent, int count, word type, word got, int got_count, word got_type, word handle)
    HIDDEN;
bool levels_alltoallv(int *result, word sent, word counts, word displacements, word type, word got, word got_counts,
                      word got_displacements, word got_type, word handle) HIDDEN;

#endif
