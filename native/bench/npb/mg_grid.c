/* How NPB MG's grids lie on the ranks, and the messages of the ranks about them; see mg_grid.h. */
#include "mg_grid.h"

#include "npb.h"

#include <stdlib.h>
#include <string.h>

/* Powers of two: z is cut first and x last, so that rows stay long. */
void mg_cut(int ranks, int parts[3])
{
    parts[0] = parts[1] = parts[2] = 1;
    for (int direction = 2; parts[0] * parts[1] * parts[2] < ranks; direction = (direction + 2) % 3)
        parts[direction] *= 2;
}

static void locate_rank(int rank, const int parts[3], int place[3])
{
    place[0] = rank % parts[0];
    place[1] = rank / parts[0] % parts[1];
    place[2] = rank / parts[0] / parts[1];
}

static int find_rank(const int parts[3], const int place[3])
{
    return (place[2] * parts[1] + place[1]) * parts[0] + place[0];
}

void mg_level_make(struct mg_level *level, int n)
{
    int parts[3], place[3];
    MPI_Datatype column;

    mg_cut(npb_ranks(), parts);
    locate_rank(npb_rank(), parts, place);
    level->n = n;
    level->cut = npb_ranks() > 1 && n > MG_WHOLE;
    for (int i = 0; i < 3; i++) {
        level->size[i] = level->cut ? n / parts[i] : n;
        level->first[i] = level->cut ? place[i] * level->size[i] : 0;
    }
    level->row = (size_t)level->size[0] + 2;
    level->plane = level->row * ((size_t)level->size[1] + 2);
    level->count = level->plane * ((size_t)level->size[2] + 2);
    level->u = npb_allocate(level->count, sizeof(double));
    level->r = npb_allocate(level->count, sizeof(double));
    if (!level->cut)
        return;
    MPI_Type_vector(level->size[1], 1, (int)level->row, MPI_DOUBLE, &column);
    MPI_Type_create_hvector(level->size[2], 1, (MPI_Aint)(level->plane * sizeof(double)), column, &level->faces[0]);
    MPI_Type_vector(level->size[2], (int)level->row, (int)level->plane, MPI_DOUBLE, &level->faces[1]);
    MPI_Type_contiguous((int)level->plane, MPI_DOUBLE, &level->faces[2]);
    MPI_Type_free(&column);
    for (int i = 0; i < 3; i++)
        MPI_Type_commit(&level->faces[i]);
}

void mg_level_free(struct mg_level *level)
{
    free(level->u);
    free(level->r);
    for (int i = 0; level->cut && i < 3; i++)
        MPI_Type_free(&level->faces[i]);
}

/* Where the face at `at` begins: x faces leave out the edges, which the y and z faces then bring along. */
static double *find_face(const struct mg_level *level, double *data, int direction, int at)
{
    if (direction == 0)
        return data + level->plane + level->row + at;
    return direction == 1 ? data + level->plane + (size_t)at * level->row : data + (size_t)at * level->plane;
}

static void copy_face(const struct mg_level *level, double *data, int direction, int from, int to)
{
    const double *source = find_face(level, data, direction, from);
    double *target = find_face(level, data, direction, to);

    if (direction == 2) {
        memcpy(target, source, level->plane * sizeof *data);
        return;
    }
    for (int z = 0; z < level->size[2]; z++, source += level->plane, target += level->plane)
        if (direction == 1)
            memcpy(target, source, level->row * sizeof *data);
        else
            for (size_t y = 0; y < (size_t)level->size[1]; y++)
                target[y * level->row] = source[y * level->row];
}

static void swap_faces(const struct mg_level *level, double *data, int direction, const int parts[3])
{
    int below[3], above[3], size = level->size[direction];
    MPI_Datatype face = level->faces[direction];
    MPI_Request requests[4];
    MPI_Status statuses[4]; /* MPI_STATUSES_IGNORE makes GCC warn of MPICH's declaration */

    locate_rank(npb_rank(), parts, below);
    locate_rank(npb_rank(), parts, above);
    below[direction] = (below[direction] + parts[direction] - 1) % parts[direction];
    above[direction] = (above[direction] + 1) % parts[direction];
    MPI_Irecv(find_face(level, data, direction, 0), 1, face, find_rank(parts, below), 1, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(find_face(level, data, direction, size + 1), 1, face, find_rank(parts, above), 2, MPI_COMM_WORLD,
              &requests[1]);
    MPI_Isend(find_face(level, data, direction, size), 1, face, find_rank(parts, above), 1, MPI_COMM_WORLD,
              &requests[2]);
    MPI_Isend(find_face(level, data, direction, 1), 1, face, find_rank(parts, below), 2, MPI_COMM_WORLD, &requests[3]);
    MPI_Waitall(4, requests, statuses);
}

void mg_exchange(const struct mg_level *level, double *data)
{
    int parts[3];

    mg_cut(npb_ranks(), parts);
    for (int direction = 0; direction < 3; direction++)
        if (level->cut && parts[direction] > 1)
            swap_faces(level, data, direction, parts);
        else {
            copy_face(level, data, direction, level->size[direction], 0);
            copy_face(level, data, direction, 1, level->size[direction] + 1);
        }
}

/* Puts the points of one block, `packed` without copies around it, at their place in the whole grid's array. */
static void unpack(const struct mg_level *whole, const int size[3], const int first[3], const double *packed,
                   double *data)
{
    for (int z = 0; z < size[2]; z++)
        for (int y = 0; y < size[1]; y++, packed += size[0])
            memcpy(data + (size_t)(first[2] + z + 1) * whole->plane + (size_t)(first[1] + y + 1) * whole->row +
                       first[0] + 1,
                   packed, (size_t)size[0] * sizeof *data);
}

void mg_gather(const struct mg_level *fine, const struct mg_level *whole, const double *part, double *data)
{
    int size[3] = {fine->size[0] / 2, fine->size[1] / 2, fine->size[2] / 2}, parts[3];
    int count = size[0] * size[1] * size[2];
    double *all = npb_allocate((size_t)count * (size_t)npb_ranks(), sizeof *all);

    mg_cut(npb_ranks(), parts);
    MPI_Allgather(part, count, MPI_DOUBLE, all, count, MPI_DOUBLE, MPI_COMM_WORLD);
    for (int rank = 0; rank < npb_ranks(); rank++) {
        int first[3];

        locate_rank(rank, parts, first);
        for (int i = 0; i < 3; i++)
            first[i] *= size[i];
        unpack(whole, size, first, all + (size_t)rank * (size_t)count, data);
    }
    mg_exchange(whole, data);
    free(all);
}
