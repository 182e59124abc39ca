/* pingpong [ROUNDS]: the first and the last rank exchange messages of 1 byte to 64 KiB and check every byte. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define SIZE_MAX_BYTES 65536

static unsigned char bytes[SIZE_MAX_BYTES];

static int check(int size, int round)
{
    int wrong = 0;

    for (int i = 0; i < size; i++)
        wrong += bytes[i] != (unsigned char)(i * 7 + round);
    return wrong;
}

static void fill(int size, int round)
{
    for (int i = 0; i < size; i++)
        bytes[i] = (unsigned char)(i * 7 + round);
}

int main(int argc, char **argv)
{
    int rank, ranks, rounds = argc > 1 ? atoi(argv[1]) : 50, wrong, all;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int size = 1; size <= SIZE_MAX_BYTES; size *= 4) {
        wrong = 0;
        for (int round = 0; round < rounds && ranks > 1; round++) {
            if (rank == 0) {
                fill(size, round);
                MPI_Send(bytes, size, MPI_BYTE, ranks - 1, 1, MPI_COMM_WORLD);
                MPI_Recv(bytes, size, MPI_BYTE, ranks - 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                wrong += check(size, round + 1);
            } else if (rank == ranks - 1) {
                MPI_Recv(bytes, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                wrong += check(size, round);
                fill(size, round + 1);
                MPI_Send(bytes, size, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
            }
        }
        MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
        if (rank == 0)
            printf("%6d bytes: %d rounds, %d wrong\n", size, rounds, all);
    }
    MPI_Finalize();
    return 0;
}
