/*
 * mpi_large_types gatherv|alltoallv: a gatherv, or an alltoallv in place, in which the last rank sends the first one,
 * or both send each other, one element of more bytes than an int counts; for
 * tests/integration/test_native_mpi_exchanges.py. Its parts lie at one place, so it needs little memory.
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

/* The last one's, at the first one. */
static bool gathers(MPI_Datatype large)
{
    int counts[MOST_RANKS] = {0}, places[MOST_RANKS] = {0}, last = size - 1;

    counts[last] = 1;
    MPI_Gatherv(sent, rank == last, large, got, counts, places, large, 0, MPI_COMM_WORLD);
    return rank != 0 || is_of(got, last);
}

static bool exchanges(MPI_Datatype large)
{
    int counts[MOST_RANKS] = {0}, places[MOST_RANKS] = {0}, last = size - 1;

    counts[0] = rank == last;
    counts[last] = rank == 0;
    fill(got);
    MPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, large, got, counts, places, large, MPI_COMM_WORLD);
    return is_of(got, rank == last ? 0 : rank == 0 ? last : rank);
}

int main(int count, char **words)
{
    int wrong, all = 0;
    MPI_Datatype large;

    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (count != 2 || (strcmp(words[1], "gatherv") && strcmp(words[1], "alltoallv")))
        MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Type_create_hvector(PARTS, PART, 0, MPI_BYTE, &large);
    MPI_Type_commit(&large);

    fill(sent);
    wrong = *words[1] == 'g' ? !gathers(large) : !exchanges(large);
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank)
        printf("%d wrong\n", all);
    MPI_Type_free(&large);
    MPI_Finalize();
    return 0;
}
