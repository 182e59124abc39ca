/*
 * choices: whether a collective is done by sites, or by the library's own algorithm.
 *
 * The faster way depends on the library, the link, the ranks and the sizes, so both are tried: the first
 * calls of an operation with sizes of a class are made in turn by both, then all ranks compare the least times of
 * each (the rank that took longest counts), and keep to the better one. Only operations that move data are measured: a
 * reduction would have other bits of floating-point sums with each choice, and operations that synchronise always gain
 * on a link when they are small. Invariant: which calls are tried, and their outcome, is the same at all ranks.
 */
#ifndef WHERRY_MPI_CHOICES_H
#define WHERRY_MPI_CHOICES_H

#include "hidden.h"
#include "library.h"

#include <stdbool.h>
#include <stdint.h>

enum operation { BCAST, GATHER, SCATTER, ALLGATHER, ALLTOALL, MEASURED };

struct choices;

/* Of a communicator; NULL when there is no memory. */
struct choices *choices_new(void) HIDDEN;
/* Also while one of its calls is under way, which a callback of the program's may do. */
void choices_free(struct choices *choices) HIDDEN;
/* Ranks are elsewhere: operations that were better by the library's algorithm may not be so now. */
void choices_again(struct choices *choices) HIDDEN;
/* Whether the next call is a try: then all ranks are to begin it at once. Else the time of a late rank, for messages
 * that others had sent before, would be that of nothing. */
bool choices_tries(const struct choices *choices, enum operation operation, int64_t bytes) HIDDEN;
/* Whether a call of so many bytes is done by sites; `across` is a communicator of all its ranks. */
bool choices_by_sites(struct choices *choices, enum operation operation, int64_t bytes, word across) HIDDEN;
/* The end of any collective that has begun so: it may have been a try. */
void choices_end(void) HIDDEN;

#endif
