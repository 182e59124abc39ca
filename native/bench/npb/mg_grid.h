/*
 * A level of NPB MG's grids: cubes of n^3 points, n = 2^k, periodic, cut into blocks for the ranks.
 *
 * A block has its points at 1..size in each direction and copies of its neighbours' at 0 and size + 1. Coarse point c
 * lies on fine point 2c, in every block alike:
 *
 *     fine    0 | 1 2 3 4 | 5          coarse 0 is fine 0, coarse 1 fine 2, coarse 2 fine 4;
 *     coarse  0 |   1   2 |   3        fine 1 lies between coarse 0 and 1, fine 5 between 2 and 3
 *
 * Levels of at most MG_WHOLE points a side are not cut: every rank holds and computes all of them, which costs less
 * than messages of a few points. With one rank no level is cut.
 */
#ifndef WHERRY_BENCH_MG_GRID_H
#define WHERRY_BENCH_MG_GRID_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

enum { MG_WHOLE = 16, MG_MOST_RANKS = 512, MG_LONGEST_ROW = 512 + 2 };

struct mg_level {
    int n;             /* points a side, of the whole grid */
    int size[3];       /* x, y, z of this rank's block */
    int first[3];      /* of its points, in the whole grid, counted from 0 */
    bool cut;
    size_t row, plane; /* doubles from one to the next */
    size_t count;      /* doubles in the block with its copies */
    double *u, *r;
    MPI_Datatype faces[3]; /* only of a cut level */
};

void mg_cut(int ranks, int parts[3]); /* ranks in x, y, z */
void mg_level_make(struct mg_level *level, int n);
void mg_level_free(struct mg_level *level);
void mg_exchange(const struct mg_level *level, double *data); /* fills the copies around the block */

/* The whole of an uncut level from the ranks' blocks `part`, which the cut level above leaves of it. */
void mg_gather(const struct mg_level *fine, const struct mg_level *whole, const double *part, double *data);

#endif
