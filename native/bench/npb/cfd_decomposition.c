/* How the grid of LU, SP and BT is cut and dealt to the ranks, and the memory of the cells. */
#include "cfd.h"

#include <stdlib.h>

enum { NARROWEST = 3 }; /* points: a halo of two must come from one neighbour, and a boundary point gives none */

static int wrap(int value, int modulus)
{
    return (value % modulus + modulus) % modulus;
}

/* The first cells take the points that are left over. */
static void place_cell(struct cfd_cell *cell, int n, const int parts[3], const int part[3])
{
    for (int d = 0; d < 3; d++) {
        int width = n / parts[d], over = n % parts[d];

        cell->part[d] = part[d];
        cell->n[d] = width + (part[d] < over);
        cell->start[d] = part[d] * width + (part[d] < over ? part[d] : over);
        cell->lo[d] = part[d] == 0 ? 1 : 0;
        cell->hi[d] = part[d] == parts[d] - 1 ? cell->n[d] - 1 : cell->n[d];
    }
    cell->row = (cell->n[0] + 2 * HALO + 1) / 2 * 2; /* even: all rows lie alike for loads of two */
    cell->u_step[0] = cell->r_step[0] = 1;
    cell->u_step[1] = COMPONENTS * cell->row;
    cell->r_step[1] = FIELDS * cell->row;
    cell->u_step[2] = (cell->n[1] + 2 * HALO) * cell->u_step[1];
    cell->r_step[2] = (cell->n[1] + 2 * HALO) * cell->r_step[1];
}

static void begin(struct cfd *cfd, const struct cfd_problem *problem, int x_parts, int y_parts, int z_parts, int cells)
{
    *cfd = (struct cfd){.problem = problem, .n = problem->n, .dt = problem->dt, .h = problem->n - 1, .cells = cells};
    cfd->parts[0] = x_parts;
    cfd->parts[1] = y_parts;
    cfd->parts[2] = z_parts;
    cfd->cell = npb_allocate((size_t)cells, sizeof *cfd->cell);
    for (int d = 0; d < 3; d++)
        cfd->at[d] = npb_allocate((size_t)cfd->parts[d], sizeof *cfd->at[d]);
}

/* Largest message of a halo exchange: the faces of one direction of all cells. */
static void finish(struct cfd *cfd)
{
    for (int c = 0; c < cfd->cells; c++)
        for (int d = 0; d < 3; d++)
            cfd->at[d][cfd->cell[c].part[d]] = &cfd->cell[c];
    for (int d = 0; d < 3; d++) {
        size_t count = 0;

        for (int c = 0; c < cfd->cells; c++) {
            const int *n = cfd->cell[c].n;

            count += (size_t)HALO * FIELDS * (size_t)n[(d + 1) % 3] * (size_t)n[(d + 2) % 3];
        }
        cfd->face_count = count > cfd->face_count ? count : cfd->face_count;
    }
}

/* Cell c of rank (x,y) lies at (x + c, y - c, c), all modulo p: the neighbours below follow from it. */
void cfd_divide_diagonal(struct cfd *cfd, const struct cfd_problem *problem)
{
    int p = 1, most = problem->n / NARROWEST, x, y;

    npb_require_square(most * most);
    while (p * p < npb_ranks())
        p++;
    x = npb_rank() % p;
    y = npb_rank() / p;
    begin(cfd, problem, p, p, p, p);
    for (int c = 0; c < p; c++)
        place_cell(&cfd->cell[c], cfd->n, cfd->parts, (int[3]){(x + c) % p, wrap(y - c, p), c});
    for (int d = 0; d < 3; d++) {
        int over_x = d == 0 ? 1 : d == 2 ? -1 : 0, over_y = d == 0 ? 0 : 1;

        cfd->next[d] = wrap(x + over_x, p) + p * wrap(y + over_y, p);
        cfd->previous[d] = wrap(x - over_x, p) + p * wrap(y - over_y, p);
    }
    finish(cfd);
}

/* Fewer parts along x than along y, since loops run along x; at most twice as many along y. */
void cfd_divide_plane(struct cfd *cfd, const struct cfd_problem *problem)
{
    int ranks = npb_ranks(), columns = 1, x, y, most = problem->n / NARROWEST, below = 1;

    for (int c = 1; c * c <= ranks; c++)
        if (ranks % c == 0)
            columns = c;
    while (2 * below <= ranks)
        below *= 2;
    if (ranks / columns > 2 * columns)
        npb_refuse("npb: this kernel runs on A x B processes with A <= B <= 2 A (1, 2, 4, 6, 8, 9, ...), not on %d; "
                   "type: mpirun -n %d", ranks, below);
    if (ranks / columns > most)
        npb_refuse("npb: class %c has work for %d x %d processes at most, not for %d x %d; type: mpirun -n %d, "
                   "or a larger class", npb_class(), most, most, columns, ranks / columns, most * most);
    x = npb_rank() % columns;
    y = npb_rank() / columns;
    begin(cfd, problem, columns, ranks / columns, 1, 1);
    place_cell(cfd->cell, cfd->n, cfd->parts, (int[3]){x, y, 0});
    cfd->previous[0] = x > 0 ? npb_rank() - 1 : MPI_PROC_NULL;
    cfd->next[0] = x < columns - 1 ? npb_rank() + 1 : MPI_PROC_NULL;
    cfd->previous[1] = y > 0 ? npb_rank() - columns : MPI_PROC_NULL;
    cfd->next[1] = y < cfd->parts[1] - 1 ? npb_rank() + columns : MPI_PROC_NULL;
    cfd->previous[2] = cfd->next[2] = MPI_PROC_NULL;
    finish(cfd);
}

static size_t points_with_halo(const struct cfd_cell *cell)
{
    return (size_t)cell->row * (size_t)(cell->n[1] + 2 * HALO) * (size_t)(cell->n[2] + 2 * HALO);
}

double cfd_bytes(const struct cfd *cfd)
{
    double points = 0, faces = cfd->parts[1] > 1 ? 12.0 * (double)cfd->face_count : 0;

    for (int c = 0; c < cfd->cells; c++)
        points += (double)points_with_halo(&cfd->cell[c]);
    return sizeof(double) * (points * (COMPONENTS + 2 * FIELDS) + faces);
}

static double *take_rows(const struct cfd_cell *cell, int components)
{
    return npb_allocate(points_with_halo(cell) * (size_t)components, sizeof(double));
}

static ptrdiff_t halo_offset(const ptrdiff_t step[3])
{
    return HALO * (step[0] + step[1] + step[2]);
}

void cfd_allocate(struct cfd *cfd)
{
    for (int c = 0; c < cfd->cells; c++) {
        struct cfd_cell *cell = &cfd->cell[c];

        cell->u = take_rows(cell, COMPONENTS) + halo_offset(cell->u_step);
        cell->r = take_rows(cell, FIELDS) + halo_offset(cell->r_step);
        cell->f = take_rows(cell, FIELDS) + halo_offset(cell->r_step);
    }
    for (int d = 0; d < 3; d++)
        for (int side = 0; side < 2 && cfd->parts[d] > 1; side++) {
            cfd->out[d][side] = npb_allocate(cfd->face_count, sizeof(double));
            cfd->in[d][side] = npb_allocate(cfd->face_count, sizeof(double));
        }
}

void cfd_free(struct cfd *cfd)
{
    for (int c = 0; c < cfd->cells; c++) {
        struct cfd_cell *cell = &cfd->cell[c];

        free(cell->u - halo_offset(cell->u_step));
        free(cell->r - halo_offset(cell->r_step));
        free(cell->f - halo_offset(cell->r_step));
    }
    for (int d = 0; d < 3; d++) {
        for (int side = 0; side < 2; side++) {
            free(cfd->out[d][side]);
            free(cfd->in[d][side]);
        }
        free(cfd->at[d]);
    }
    free(cfd->cell);
}
