/*
 * ordered: reductions whose result does not depend on where ranks are, to the last bit.
 *
 * Ranks' elements are combined one after the other, from rank 0 on: ((x0 + x1) + x2) + x3. The elements of all ranks go
 * over the link unreduced, and each is combined where its result is wanted. So the order is the same for any map,
 * number of bytes, root and way of sending. Needs WHERRY_MPI_IN_ORDER in the environment of all ranks, and a map, which
 * may have one site only.
 *
 * Each function does the whole collective or returns false, as those of collectives.h. The decision is the same at all
 * ranks, and does not depend on the map.
 */
#ifndef WHERRY_MPI_ORDERED_H
#define WHERRY_MPI_ORDERED_H

#include "hidden.h"
#include "library.h"

#include <stdbool.h>
#include <stdint.h>

/* Whether a reduction is to be done so. If it then returns false, it is the library's. */
bool ordered_wants(word type, word operator) HIDDEN;

bool ordered_reduce(int *result, word sent, word got, int64_t count, word type, word operator, int root, word handle)
    HIDDEN;
bool ordered_allreduce(int *result, word sent, word got, int64_t count, word type, word operator, word handle) HIDDEN;
/* `counts` of all ranks, or `count` of each. */
bool ordered_reduce_scatter(int *result, word sent, word got, const int *counts, int count, word type, word operator,
                            word handle) HIDDEN;
bool ordered_scan(int *result, word sent, word got, int64_t count, word type, word operator, word handle,
                  bool exclusive) HIDDEN;

#endif
