/* check [ROUNDS]: every call of the subset, its result compared with the right one; prints one line. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BIG 3000 /* numbers: more than a packet and than a piece */

static int rank, ranks, checks;
static long in[16 * BIG], out[16 * BIG];

static void require(int holds, const char *what, int round)
{
    checks++;
    if (holds)
        return;
    printf("failed: %s, rank %d round %d\n", what, rank, round);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static void reductions(int round)
{
    static const MPI_Op ops[] = {MPI_SUM, MPI_PROD, MPI_MAX, MPI_MIN};
    double real = 0.5 + rank, real_all, wanted = 0;
    int number = rank + 1, result = -1, expected[4] = {0, 1, ranks, 1};

    for (int other = 0; other < ranks; other++) {
        expected[0] += other + 1;
        expected[1] *= other + 1;
        wanted += 0.5 + other;
    }
    for (int op = 0; op < 4; op++) {
        int root = (round + op) % ranks;

        MPI_Reduce(&number, &result, 1, MPI_INT, ops[op], root, MPI_COMM_WORLD);
        require(rank != root || result == expected[op], "reduce", round);
        MPI_Allreduce(&number, &result, 1, MPI_INT, ops[op], MPI_COMM_WORLD);
        require(result == expected[op], "allreduce", round);
    }
    MPI_Allreduce(&real, &real_all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    require(real_all == wanted, "allreduce of doubles", round);
    for (int i = 0; i < BIG; i++)
        in[i] = (long)i * (rank + 1);
    MPI_Allreduce(in, out, BIG, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
    require(out[BIG - 1] == (long)(BIG - 1) * ranks, "allreduce of many", round);
}

static void collectives(int round, int size)
{
    int root = round % ranks;

    for (int i = 0; i < size; i++)
        out[i] = rank == root ? i + round : -1;
    MPI_Bcast(out, size, MPI_LONG, root, MPI_COMM_WORLD);
    require(out[size - 1] == size - 1 + round, "bcast", round);
    for (int i = 0; i < size; i++)
        in[i] = rank * 1000000 + i;
    MPI_Gather(in, size, MPI_LONG, out, size, MPI_LONG, root, MPI_COMM_WORLD);
    for (int other = 0; rank == root && other < ranks; other++)
        require(out[other * size + size - 1] == other * 1000000 + size - 1, "gather", round);
    MPI_Allgather(in, size, MPI_LONG, out, size, MPI_LONG, MPI_COMM_WORLD);
    for (int other = 0; other < ranks; other++)
        require(out[other * size] == other * 1000000, "allgather", round);
    for (int i = 0; i < ranks * size; i++)
        in[i] = rank * 1000000 + i;
    MPI_Scatter(in, size, MPI_LONG, out, size, MPI_LONG, root, MPI_COMM_WORLD);
    require(out[size - 1] == root * 1000000 + rank * size + size - 1, "scatter", round);
    MPI_Alltoall(in, size, MPI_LONG, out, size, MPI_LONG, MPI_COMM_WORLD);
    for (int other = 0; other < ranks; other++)
        require(out[other * size] == other * 1000000 + rank * size, "alltoall", round);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* All send to rank 0, which takes them by wildcards and in the order of each sender. */
static void wildcards(int round)
{
    int numbers[16] = {0}, value, found, count, length;
    char text[100], name[MPI_MAX_PROCESSOR_NAME];
    double began = MPI_Wtime();
    MPI_Status status;

    for (int i = 0; rank != 0 && i < 5; i++) {
        value = i;
        MPI_Send(&value, 1, MPI_INT, 0, 10 + i % 2, MPI_COMM_WORLD);
    }
    for (int i = 0; rank == 0 && i < 5 * (ranks - 1); i++) {
        MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        require(value == numbers[status.MPI_SOURCE]++ && status.MPI_TAG == 10 + value % 2, "wildcards", round);
    }
    MPI_Barrier(MPI_COMM_WORLD); /* or the wildcard above might take the next */
    memset(text, 'a' + rank % 26, sizeof(text));
    if (rank == ranks - 1)
        MPI_Send(text, 1 + round % 100, MPI_CHAR, 0, 20, MPI_COMM_WORLD);
    if (rank == 0) {
        do
            MPI_Iprobe(MPI_ANY_SOURCE, 20, MPI_COMM_WORLD, &found, &status);
        while (!found);
        MPI_Probe(ranks - 1, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_CHAR, &count);
        require(count == 1 + round % 100 && status.MPI_SOURCE == ranks - 1, "probe", round);
        MPI_Recv(text, sizeof(text), MPI_CHAR, ranks - 1, 20, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        require(text[count - 1] == 'a' + (ranks - 1) % 26, "text", round);
    }
    MPI_Get_processor_name(name, &length);
    require(length > 0 && (int)strlen(name) == length, "name", round);
    require(MPI_Wtime() - began >= 0, "time", round);
}

/* Many messages of many sizes under way, received in another order than sent. */
static void crowd(int round)
{
    enum { MANY = 12 };
    MPI_Request requests[2 * MANY];
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks, done;
    MPI_Status status;

    for (int i = 0; i < MANY; i++)
        MPI_Irecv(out + (MANY - 1 - i) * BIG, BIG, MPI_LONG, left, MANY - 1 - i, MPI_COMM_WORLD, &requests[i]);
    for (int i = 0; i < MANY; i++) {
        in[i * BIG] = rank * 100 + i;
        MPI_Isend(in + i * BIG, 1 + i * (BIG - 1) / MANY, MPI_LONG, right, i, MPI_COMM_WORLD, &requests[MANY + i]);
    }
    do
        MPI_Test(&requests[0], &done, &status);
    while (!done);
    require(status.MPI_TAG == MANY - 1 && requests[0] == MPI_REQUEST_NULL, "test", round);
    MPI_Waitall(2 * MANY, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < MANY; i++)
        require(out[i * BIG] == left * 100 + i, "crowd", round);
}

/*
 * More large messages under way than a rank can have sends beside it; others pass them, and the last is received first.
 */
static void late(int round)
{
    enum { MANY = 24, SIZE = 200 };
    MPI_Request requests[MANY];
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;

    for (int i = 0; i < MANY; i++) {
        in[i * SIZE] = rank * 100 + i;
        MPI_Isend(in + i * SIZE, SIZE, MPI_LONG, right, 40 + i, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = MANY - 1; i >= 0; i--) {
        MPI_Recv(out, SIZE, MPI_LONG, left, 40 + i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        require(out[0] == left * 100 + i, "late", round);
    }
    MPI_Waitall(MANY, requests, MPI_STATUSES_IGNORE);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 5;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int round = 0; round < rounds; round++) {
        reductions(round);
        collectives(round, 1);
        collectives(round, BIG);
        if (ranks > 1)
            wildcards(round);
        crowd(round);
        late(round);
    }
    if (rank == 0)
        printf("ok, %d rounds\n", rounds);
    MPI_Finalize();
    return 0;
}
