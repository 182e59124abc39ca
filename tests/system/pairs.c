/* Ranks that exchange small messages in pairs: each with the one half of the ranks away, for so many seconds. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double end = MPI_Wtime() + (argc > 1 ? atof(argv[1]) : 1.0);
    int half = ranks / 2, peer = (rank + half) % ranks;
    long count = 0;
    for (double more = 1, theirs = 1; more > 0 && theirs > 0; count++) {
        more = MPI_Wtime() < end;
        MPI_Sendrecv(&more, 1, MPI_DOUBLE, peer, 0, &theirs, 1, MPI_DOUBLE, peer, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
    }
    printf("%d exchanged %ld\n", rank, count);
    return MPI_Finalize();
}
