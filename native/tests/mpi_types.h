/* Types with gaps and backwards, and an operator that does not commute, for programs that compare collectives. */
#ifndef MPI_TYPES_H
#define MPI_TYPES_H

#include <mpi.h>
#include <string.h>

static MPI_Datatype matrix, gaps, backwards;
static MPI_Op product;

/* Products of 2 x 2 matrices of small numbers, which do not commute. */
static void multiply(void *in, void *inout, int *count, MPI_Datatype *type)
{
    int *a = in, *b = inout, c[4];

    (void)type;
    for (int i = 0; i < *count; i++, a += 4, b += 4) {
        c[0] = (a[0] * b[0] + a[1] * b[2]) % 997;
        c[1] = (a[0] * b[1] + a[1] * b[3]) % 997;
        c[2] = (a[2] * b[0] + a[3] * b[2]) % 997;
        c[3] = (a[2] * b[1] + a[3] * b[3]) % 997;
        memcpy(b, c, sizeof c);
    }
}

static void make_types(void)
{
    int lengths[] = {1, 1}, places[] = {1, 0};

    MPI_Type_contiguous(4, MPI_INT, &matrix);
    MPI_Type_commit(&matrix);
    MPI_Type_vector(3, 1, 2, MPI_INT, &gaps);
    MPI_Type_commit(&gaps);
    MPI_Type_indexed(2, lengths, places, MPI_INT, &backwards);
    MPI_Type_commit(&backwards);
    MPI_Op_create(multiply, 0, &product);
}

#endif
