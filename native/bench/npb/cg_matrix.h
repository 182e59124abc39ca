/*
 * The sparse matrix of NPB CG, and how it and the vectors lie on a grid of ranks.
 *
 * `height` x `width` ranks, rank = row * width + column, width = height or 2 * height. The n indices (padded with
 * nothing) are cut into height * width pieces of equal length. Grid row i has the matrix rows of pieces
 * i * width ... i * width + width - 1; grid column j has the matrix columns of pieces j, width + j, 2 * width + j, ...
 * Two by two:
 *
 *          columns of   0 2   1 3        rank 0 = (0,0)   rank 1 = (0,1)
 *     rows of  0 1    [ A00 | A01 ]      rank 2 = (1,0)   rank 3 = (1,1)
 *     rows of  2 3    [ A10 | A11 ]
 *
 * So when a row of ranks has added up its parts of A p and each rank of it keeps one piece, rank (i,j) holds piece
 * i * width + j, which is the i-th piece that column j needs next: nothing has to be transposed.
 */
#ifndef WHERRY_BENCH_CG_MATRIX_H
#define WHERRY_BENCH_CG_MATRIX_H

#include <stdint.h>

struct cg_grid {
    int height, width, row, column;
    int piece; /* indices in a piece */
};

struct cg_matrix {
    int row_count;       /* width * piece; those past n are empty */
    int64_t *row_starts; /* row_count + 1 */
    int32_t *columns;    /* local, 0 to height * piece - 1, rising in a row */
    double *values;
};

struct cg_problem {
    int n, nonzeros, iterations; /* nonzeros: in each random vector */
    double shift, zeta;
};

/* Local column of global index `at`, or -1 when another grid column has it. */
static inline int cg_local_column(const struct cg_grid *grid, int at)
{
    int piece = at / grid->piece;

    return piece % grid->width == grid->column ? piece / grid->width * grid->piece + at % grid->piece : -1;
}

double cg_matrix_bytes(const struct cg_grid *grid, const struct cg_problem *problem);
void cg_matrix_make(struct cg_matrix *matrix, const struct cg_grid *grid, const struct cg_problem *problem);

#endif
