/* An MPI program that locks files of its directory while it is moved, until the file `stop` is there.
 *
 * Rank 0 holds a flock on `held`, as HDF5 does for as long as a file is open; the others try for it again and again. All
 * write to `shared` in MPI-IO's atomic mode, under fcntl locks of a moment each. At the end rank 0 prints how often another
 * rank acquired `held`, how often they tried, and how many blocks of `shared` differ from the last written ones. */
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define BLOCK 4096

int main(int argc, char **argv)
{
    int rank, ranks, stop = 0, wrong = 0;
    long mine[2] = {0, 0}, all[2];
    char block[BLOCK], read[BLOCK];
    MPI_File shared;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int held = open("held", O_RDWR | O_CREAT, 0644);
    if (held < 0 || (rank == 0 && flock(held, LOCK_EX | LOCK_NB)) ||
        MPI_File_open(MPI_COMM_WORLD, "shared", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &shared) ||
        MPI_File_set_atomicity(shared, 1))
        MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        printf("begun\n");
        fflush(stdout);
    }
    for (long turn = 0; !stop; turn++) {
        memset(block, (int)((turn + rank) % 251), BLOCK);
        MPI_File_write_at(shared, (MPI_Offset)rank * BLOCK, block, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE);
        MPI_File_read_at(shared, (MPI_Offset)rank * BLOCK, read, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE);
        wrong += memcmp(block, read, BLOCK) != 0;
        if (rank && !flock(held, LOCK_EX | LOCK_NB)) {
            mine[0]++;
            flock(held, LOCK_UN);
        }
        mine[1] += rank != 0;
        usleep(2000);
        stop = rank == 0 && access("stop", F_OK) == 0;
        MPI_Bcast(&stop, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    MPI_Reduce(mine, all, 2, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(rank ? &wrong : MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_File_close(&shared);
    if (rank == 0)
        printf("%ld %ld %d\n", all[0], all[1], wrong);
    MPI_Finalize();
    return 0;
}
