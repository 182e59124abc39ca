/*
 * mpi_calls READY STOP: ranks that make calls whose numbers and sizes are known, for tests/integration/test_native_mpi.py,
 * which builds it as a program and as a shared library. Rank 0 then makes the file READY and waits for STOP, with the
 * others in a barrier. With the variable FORK each rank has a child by then, which does nothing.
 */
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MESSAGES = 3, DOUBLES = 100, STARTS = 5, INTS = 10, SUMS = 7, BYTES = 4096, TESTS = 1000, TAG = 1 };

static int rank, size;

/* MESSAGES of DOUBLES to the next rank. */
static void around(void)
{
    double out[DOUBLES] = {0}, in[DOUBLES];
    MPI_Request request;

    for (int i = 0; i < MESSAGES; i++) {
        MPI_Isend(out, DOUBLES, MPI_DOUBLE, (rank + 1) % size, TAG, MPI_COMM_WORLD, &request);
        MPI_Recv(in, DOUBLES, MPI_DOUBLE, (rank + size - 1) % size, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

/* STARTS of a persistent request with INTS to the next rank. */
static void persistent(void)
{
    int out[INTS] = {0}, in[INTS];
    MPI_Request requests[2];

    MPI_Send_init(out, INTS, MPI_INT, (rank + 1) % size, TAG, MPI_COMM_WORLD, &requests[0]);
    MPI_Recv_init(in, INTS, MPI_INT, (rank + size - 1) % size, TAG, MPI_COMM_WORLD, &requests[1]);
    for (int i = 0; i < STARTS; i++) {
        if (i % 2)
            MPI_Startall(2, requests);
        else {
            MPI_Start(&requests[0]);
            MPI_Start(&requests[1]);
        }
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    }
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
}

/* In a communicator with ranks in reverse, each sends 3 pieces of two ints to its first one, which is the last rank. */
static void reversed(void)
{
    MPI_Datatype pieces;
    MPI_Comm comm;
    int own, field[16] = {0};

    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comm);
    MPI_Comm_rank(comm, &own);
    MPI_Type_vector(2, 1, 2, MPI_INT, &pieces);
    MPI_Type_commit(&pieces);
    if (own)
        MPI_Send(field, 3, pieces, 0, TAG, comm);
    for (int i = 1; !own && i < size; i++)
        MPI_Recv(field, 3, pieces, MPI_ANY_SOURCE, TAG, comm, MPI_STATUS_IGNORE);
    MPI_Type_free(&pieces);
    MPI_Comm_free(&comm);
}

static void collectives(void)
{
    int *counts = calloc((size_t)size, sizeof *counts), *places = calloc((size_t)size, sizeof *places);
    int *all = calloc((size_t)size, sizeof *all);
    double one = 1, sum;
    char buffer[BYTES] = {0};

    for (int i = 0; i < SUMS; i++)
        MPI_Allreduce(&one, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Bcast(buffer, BYTES, MPI_BYTE, 0, MPI_COMM_WORLD);
    for (int i = 0; i < size; i++) {
        counts[i] = 1;
        places[i] = i;
    }
    /* Arguments that MPI_IN_PLACE makes void are not to be looked at. */
    if (rank)
        MPI_Gather(&all[rank], 1, MPI_INT, NULL, 0, MPI_DATATYPE_NULL, 0, MPI_COMM_WORLD);
    else
        MPI_Gather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, 1, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, 1, MPI_INT, MPI_COMM_WORLD);
    MPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, all, counts, places, MPI_INT, MPI_COMM_WORLD);
    free(all);
    free(places);
    free(counts);
}

static void tests(void)
{
    int found;

    for (int i = 0; i < TESTS; i++)
        MPI_Iprobe(MPI_ANY_SOURCE, TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
}

int mpi_calls(const char *ready, const char *stop)
{
    int threads;
    pid_t child = 0;

    MPI_Init_thread(NULL, NULL, getenv("MULTIPLE") ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &threads);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    around();
    persistent();
    reversed();
    collectives();
    tests();
    if (getenv("FORK")) {
        child = fork();
        if (!child) {
            pause();
            _exit(0);
        }
    }
    if (!rank) {
        close(open(ready, O_CREAT | O_WRONLY, 0666));
        while (access(stop, F_OK))
            usleep(10 * 1000);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (child > 0)
        kill(child, SIGKILL);
    MPI_Finalize();
    return 0;
}

int main(int count, char **words)
{
    return count == 3 ? mpi_calls(words[1], words[2]) : 2;
}
