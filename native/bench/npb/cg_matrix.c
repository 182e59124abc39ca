/*
 * NPB CG's matrix: A = sum over i of size_i v_i v_i^T, plus (rcond - shift) I; v_i is sparse and random.
 *
 * Every rank draws all vectors (the random numbers are one sequence) and keeps its block of the sum, made row by row:
 * row r is the sum of v_i[r] size_i v_i over the vectors that have an entry r.
 */
#include "cg_matrix.h"

#include "npb.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double rcond = 0.1;

/* Sparse vectors of equal capacity, and for each index the vectors that have it. */
struct vectors {
    int n, capacity;
    int32_t *counts, *places; /* places[i * capacity + k]: index of entry k of vector i */
    double *values;
    int32_t *owner_starts, *owners; /* owners[owner_starts[r] ...]: entries i * capacity + k whose index is r */
};

/* Draws vector i: `nonzeros` distinct random indices, then entry i set to 0.5. */
static uint64_t draw_vector(struct vectors *vectors, int i, int nonzeros, uint64_t state)
{
    int32_t *places = vectors->places + (size_t)i * (size_t)vectors->capacity;
    double *values = vectors->values + (size_t)i * (size_t)vectors->capacity;
    int count = 0, range = 1, at;

    while (range < vectors->n)
        range *= 2;
    while (count < nonzeros) {
        double value = npb_random(&state);
        int place = (int)(npb_random(&state) * range);

        for (at = 0; at < count && places[at] != place; at++)
            ;
        if (place >= vectors->n || at < count)
            continue;
        places[count] = place;
        values[count++] = value;
    }
    for (at = 0; at < count && places[at] != i; at++)
        ;
    places[at] = i;
    values[at] = 0.5;
    vectors->counts[i] = at == count ? count + 1 : count;
    return state;
}

static void find_owners(struct vectors *vectors)
{
    int32_t *next = npb_allocate((size_t)vectors->n, sizeof *next);

    for (int i = 0; i < vectors->n; i++)
        for (int k = 0; k < vectors->counts[i]; k++)
            next[vectors->places[i * vectors->capacity + k]]++;
    for (int r = 0; r < vectors->n; r++) {
        vectors->owner_starts[r + 1] = vectors->owner_starts[r] + next[r];
        next[r] = vectors->owner_starts[r];
    }
    for (int i = 0; i < vectors->n; i++)
        for (int k = 0; k < vectors->counts[i]; k++)
            vectors->owners[next[vectors->places[i * vectors->capacity + k]]++] = i * vectors->capacity + k;
    free(next);
}

static void draw_vectors(struct vectors *vectors, const struct cg_problem *problem)
{
    size_t entries;
    uint64_t state = npb_random_skip(NPB_SEED, 1); /* the first number is not used */

    vectors->n = problem->n;
    vectors->capacity = problem->nonzeros + 1;
    entries = (size_t)problem->n * (size_t)vectors->capacity;
    vectors->counts = npb_allocate((size_t)problem->n, sizeof *vectors->counts);
    vectors->places = npb_allocate(entries, sizeof *vectors->places);
    vectors->values = npb_allocate(entries, sizeof *vectors->values);
    vectors->owner_starts = npb_allocate((size_t)problem->n + 1, sizeof *vectors->owner_starts);
    vectors->owners = npb_allocate(entries, sizeof *vectors->owners);
    for (int i = 0; i < problem->n; i++)
        state = draw_vector(vectors, i, problem->nonzeros, state);
    find_owners(vectors);
}

static void free_vectors(struct vectors *vectors)
{
    free(vectors->counts);
    free(vectors->places);
    free(vectors->values);
    free(vectors->owner_starts);
    free(vectors->owners);
}

/* A row under construction: its sums by local column, and a bit for each column that has one. */
struct sparse_row {
    int words;
    uint64_t *bits;
    double *sums;
};

static void add_to_row(struct sparse_row *row, int column, double value)
{
    uint64_t bit = UINT64_C(1) << (column & 63);

    if (!(row->bits[column >> 6] & bit)) {
        row->bits[column >> 6] |= bit;
        row->sums[column] = 0;
    }
    row->sums[column] += value;
}

/* Appends the row to the matrix in rising order of columns and empties it; gives the new count of entries. */
static int64_t flush_row(struct sparse_row *row, struct cg_matrix *matrix, int64_t at)
{
    for (int word = 0; word < row->words; word++) {
        for (uint64_t bits = row->bits[word]; bits; bits &= bits - 1) {
            matrix->columns[at] = word * 64 + __builtin_ctzll(bits);
            matrix->values[at] = row->sums[matrix->columns[at]];
            at++;
        }
        row->bits[word] = 0;
    }
    return at;
}

/* Products that fall into this rank's block: no fewer than the block's entries. */
static size_t count_products(const struct vectors *vectors, const struct cg_grid *grid, int first, int end)
{
    size_t products = (size_t)(end - first); /* the diagonal */

    for (int i = 0; i < vectors->n; i++) {
        size_t rows = 0, columns = 0;

        for (int k = 0; k < vectors->counts[i]; k++) {
            int place = vectors->places[i * vectors->capacity + k];

            rows += place >= first && place < end;
            columns += cg_local_column(grid, place) >= 0;
        }
        products += rows * columns;
    }
    return products;
}

double cg_matrix_bytes(const struct cg_grid *grid, const struct cg_problem *problem)
{
    double width = problem->nonzeros + 1, ranks = grid->height * grid->width;

    return problem->n * width * (12 * width / ranks + 20) + 48.0 * problem->n;
}

void cg_matrix_make(struct cg_matrix *matrix, const struct cg_grid *grid, const struct cg_problem *problem)
{
    struct vectors vectors;
    struct sparse_row row = {.words = grid->height * grid->piece / 64 + 1};
    double *sizes = npb_allocate((size_t)problem->n, sizeof *sizes);
    int first = grid->row * grid->width * grid->piece, end;
    size_t products;
    int64_t at = 0;

    matrix->row_count = grid->width * grid->piece;
    end = first + matrix->row_count < problem->n ? first + matrix->row_count : problem->n;
    draw_vectors(&vectors, problem);
    products = count_products(&vectors, grid, first, end);
    matrix->row_starts = npb_allocate((size_t)matrix->row_count + 1, sizeof *matrix->row_starts);
    matrix->columns = npb_allocate(products, sizeof *matrix->columns);
    matrix->values = npb_allocate(products, sizeof *matrix->values);
    row.bits = npb_allocate((size_t)row.words, sizeof *row.bits);
    row.sums = npb_allocate((size_t)row.words * 64, sizeof *row.sums);
    sizes[0] = 1;
    for (int i = 1; i < problem->n; i++)
        sizes[i] = sizes[i - 1] * pow(rcond, 1.0 / problem->n);

    /* places become local columns: the global ones are in the owners' lists */
    for (int i = 0; i < problem->n; i++)
        for (int k = 0; k < vectors.counts[i]; k++) {
            int32_t *place = &vectors.places[i * vectors.capacity + k];

            *place = cg_local_column(grid, *place);
        }
    for (int r = first; r < end; r++) {
        int diagonal = cg_local_column(grid, r);

        matrix->row_starts[r - first] = at;
        for (int32_t owner = vectors.owner_starts[r]; owner < vectors.owner_starts[r + 1]; owner++) {
            int32_t entry = vectors.owners[owner], i = entry / vectors.capacity, start = i * vectors.capacity;

            for (int32_t k = start; k < start + vectors.counts[i]; k++)
                if (vectors.places[k] >= 0)
                    add_to_row(&row, vectors.places[k], vectors.values[entry] * sizes[i] * vectors.values[k]);
        }
        if (diagonal >= 0)
            add_to_row(&row, diagonal, rcond - problem->shift);
        at = flush_row(&row, matrix, at);
    }
    for (int r = end > first ? end - first : 0; r <= matrix->row_count; r++)
        matrix->row_starts[r] = at;
    free(row.bits);
    free(row.sums);
    free(sizes);
    free_vectors(&vectors);
}
