/* An MPI program whose ranks make two files of their directory grow while they are moved, until the file `stop` is there.
 *
 * In each turn all write their blocks of `all` together (MPI_File_write_at_all), and a line each at the end of `lines` (the shared
 * pointer, MPI_File_write_shared). At the end rank 0 reads both, and prints the number of turns, of blocks of `all` that differ
 * from the written ones, and of lines that are missing or there twice. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 3000, LINE = 16, MOST = 20000 };

static void fill(unsigned char *block, long turn, int rank)
{
    unsigned next = (unsigned)(turn * 31 + rank + 1);

    for (int i = 0; i < BLOCK; i++) {
        next = next * 1103515245 + 12345;
        block[i] = (unsigned char)(next >> 16);
    }
}

static long wrong_blocks(long turns, int ranks)
{
    unsigned char block[BLOCK], read[BLOCK];
    FILE *file = fopen("all", "rb");
    long wrong = file ? 0 : turns;

    for (long turn = 0; file && turn < turns; turn++)
        for (int rank = 0; rank < ranks; rank++) {
            fill(block, turn, rank);
            wrong += fread(read, 1, BLOCK, file) != BLOCK || memcmp(block, read, BLOCK);
        }
    return wrong + (file && fgetc(file) != EOF);
}

static long wrong_lines(long turns, int ranks)
{
    char *seen = calloc((size_t)(turns * ranks), 1), line[LINE + 1];
    FILE *file = fopen("lines", "r");
    long turn, wrong = 0;
    int rank;

    while (file && fread(line, 1, LINE, file) == LINE) {
        line[LINE] = 0;
        if (sscanf(line, "%ld %d", &turn, &rank) != 2 || turn >= turns || rank >= ranks || seen[turn * ranks + rank]++)
            wrong++;
    }
    for (long i = 0; i < turns * ranks; i++)
        wrong += !seen[i];
    free(seen);
    return wrong;
}

int main(int argc, char **argv)
{
    unsigned char block[BLOCK];
    char line[LINE + 1];
    int rank, ranks, stop = 0;
    long turn;
    MPI_File all, lines;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (MPI_File_open(MPI_COMM_WORLD, "all", MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &all) ||
        MPI_File_open(MPI_COMM_WORLD, "lines", MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &lines))
        MPI_Abort(MPI_COMM_WORLD, 2);
    if (rank == 0) {
        printf("begun\n");
        fflush(stdout);
    }
    for (turn = 0; !stop && turn < MOST; turn++) {
        fill(block, turn, rank);
        snprintf(line, sizeof line, "%-7ld %6d\n\n", turn, rank);
        if (MPI_File_write_at_all(all, (MPI_Offset)(turn * ranks + rank) * BLOCK, block, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE) ||
            MPI_File_write_shared(lines, line, LINE, MPI_CHAR, MPI_STATUS_IGNORE))
            MPI_Abort(MPI_COMM_WORLD, 3);
        usleep(5000);
        stop = rank == 0 && !access("stop", F_OK);
        MPI_Bcast(&stop, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    MPI_File_close(&all);
    MPI_File_close(&lines);
    if (rank == 0)
        printf("%ld %ld %ld\n", turn, wrong_blocks(turn, ranks), wrong_lines(turn, ranks));
    MPI_Finalize();
    return 0;
}
