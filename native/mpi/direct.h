/*
 * direct: non-blocking collectives over several sites that cross the link once, as each rank sends its part for each
 * other one to it at once.
 *
 * Each is one non-blocking alltoallv of the library's own on the program's communicator, which has all messages under way
 * from the start: whatever ranks call next, no message waits for another one, nor for anything that we are to do. The
 * elements of a reduction go unreduced, and each rank combines them when the program learns of the end (pending.h).
 *
 * As in collectives.h a function that returns false has done nothing, and the decision is the same at all ranks. None
 * asks another rank for anything. `request` is where a handle of C goes.
 */
#ifndef WHERRY_MPI_DIRECT_H
#define WHERRY_MPI_DIRECT_H

#include "library.h"

#include <stdbool.h>

#define HIDDEN __attribute__((visibility("hidden")))

bool direct_ibarrier(int *result, word handle, word request) HIDDEN;
bool direct_ibcast(int *result, word buffer, int count, word type, int root, word handle, word request) HIDDEN;
bool direct_ireduce(int *result, word sent, word got, int count, word type, word operator, int root, word handle,
                    word request) HIDDEN;
bool direct_iallreduce(int *result, word sent, word got, int count, word type, word operator, word handle,
                       word request) HIDDEN;
bool direct_iscan(int *result, word sent, word got, int count, word type, word operator, word handle, word request)
    HIDDEN;
bool direct_iexscan(int *result, word sent, word got, int count, word type, word operator, word handle, word request)
    HIDDEN;
bool direct_ireduce_scatter_block(int *result, word sent, word got, int count, word type, word operator, word handle,
                                  word request) HIDDEN;
bool direct_ireduce_scatter(int *result, word sent, word got, word counts, word type, word operator, word handle,
                            word request) HIDDEN;
bool direct_igather(int *result, word sent, int count, word type, word got, int got_count, word got_type, int root,
                    word handle, word request) HIDDEN;
bool direct_iscatter(int *result, word sent, int sent_count, word sent_type, word got, int count, word type, int root,
                     word handle, word request) HIDDEN;
bool direct_iallgather(int *result, word sent, int count, word type, word got, int got_count, word got_type,
                       word handle, word request) HIDDEN;
bool direct_iallgatherv(int *result, word sent, int count, word type, word got, word counts, word displacements,
                        word got_type, word handle, word request) HIDDEN;
bool direct_ialltoall(int *result, word sent, int count, word type, word got, int got_count, word got_type,
                      word handle, word request) HIDDEN;

#endif
