/*
 * The two-deep halos of the state. All cells of a rank have the same neighbours, so one message for each of the six
 * directions carries the faces of all of them, in the order of their positions along the direction, on both sides.
 */
#include "cfd.h"

#include <string.h>

enum { BEFORE, AFTER };

/* Copies layers first..first+HALO-1 along d between cell and buffer; gives the end of the used part of the buffer. */
static double *copy_layers(const struct cfd_cell *cell, int d, int first, double *buffer, bool into_cell)
{
    int from[3] = {0, 0, 0}, to[3] = {cell->n[0], cell->n[1], cell->n[2]};
    size_t width;

    from[d] = first;
    to[d] = first + HALO;
    width = (size_t)(to[0] - from[0]);
    for (int k = from[2]; k < to[2]; k++)
        for (int j = from[1]; j < to[1]; j++)
            for (int m = 0; m < FIELDS; m++) {
                double *row = cfd_u(cell, from[0], j, k) + m * cell->row;

                if (into_cell)
                    memcpy(row, buffer, width * sizeof *row);
                else
                    memcpy(buffer, row, width * sizeof *row);
                buffer += width;
            }
    return buffer;
}

/*
 * Copies the faces that go out at a side, or the faces that came in there; cells at that end of the cube have no
 * neighbour.
 */
static int copy_faces(const struct cfd *cfd, int d, int side, double *buffer, bool incoming)
{
    double *end = buffer;

    for (int s = side == BEFORE ? 1 : 0; s < cfd->parts[d] - (side == AFTER); s++) {
        const struct cfd_cell *cell = cfd->at[d][s];
        int inside, outside;

        if (!cell)
            continue;
        inside = side == BEFORE ? 0 : cell->n[d] - HALO;
        outside = side == BEFORE ? -HALO : cell->n[d];
        end = copy_layers(cell, d, incoming ? outside : inside, end, incoming);
    }
    return (int)(end - buffer);
}

void cfd_exchange(struct cfd *cfd)
{
    MPI_Request request[12];
    MPI_Status status[12];
    int requests = 0;

    for (int d = 0; d < 3; d++) {
        int rank[2] = {cfd->previous[d], cfd->next[d]};

        for (int side = 0; side < 2 && cfd->parts[d] > 1; side++) /* data from BEFORE was sent to AFTER */
            MPI_Irecv(cfd->in[d][side], (int)cfd->face_count, MPI_DOUBLE, rank[side], 2 * d + 1 - side, MPI_COMM_WORLD,
                      &request[requests++]);
    }
    for (int d = 0; d < 3; d++) {
        int rank[2] = {cfd->previous[d], cfd->next[d]};

        for (int side = 0; side < 2 && cfd->parts[d] > 1; side++)
            MPI_Isend(cfd->out[d][side], copy_faces(cfd, d, side, cfd->out[d][side], false), MPI_DOUBLE, rank[side],
                      2 * d + side, MPI_COMM_WORLD, &request[requests++]);
    }
    MPI_Waitall(requests, request, status);
    for (int d = 0; d < 3; d++)
        for (int side = 0; side < 2 && cfd->parts[d] > 1; side++)
            copy_faces(cfd, d, side, cfd->in[d][side], true);
}
