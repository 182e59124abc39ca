/*
 * mpi_large_types: a gatherv and an alltoallv in place, in which the first and the last rank exchange one element of
 * more bytes than an int counts; for tests/integration/test_native_mpi_exchanges.py. Its parts lie at one place, so it
 * needs little memory.
 */
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { PART = 1 << 20, PARTS = 2049, MOST_RANKS = 16 };

static char sent[PART], got[PART];
static int rank, size;

static bool is_of(const char *memory, int other)
{
    for (int i = 0; i < PART; i++)
        if (memory[i] != (char)(other * 31 + i % 101))
            return false;
    return true;
}

static void fill(char *memory)
{
    for (int i = 0; i < PART; i++)
        memory[i] = (char)(rank * 31 + i % 101);
}

int main(void)
{
    int counts[MOST_RANKS] = {0}, places[MOST_RANKS] = {0}, last, wrong = 0, all = 0;
    MPI_Datatype large;

    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    last = size - 1;
    MPI_Type_create_hvector(PARTS, PART, 0, MPI_BYTE, &large);
    MPI_Type_commit(&large);

    fill(sent);
    counts[last] = 1;
    MPI_Gatherv(sent, rank == last, large, got, counts, places, large, 0, MPI_COMM_WORLD);
    wrong += rank == 0 && !is_of(got, last);

    counts[0] = rank == last;
    counts[last] = rank == 0;
    fill(got);
    MPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, large, got, counts, places, large, MPI_COMM_WORLD);
    wrong += !is_of(got, rank == last ? 0 : rank == 0 ? last : rank);

    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank)
        printf("%d wrong\n", all);
    MPI_Type_free(&large);
    MPI_Finalize();
    return 0;
}
