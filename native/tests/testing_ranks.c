/*
 * testing_ranks CALL NANOSECONDS COUNT: ranks that work for so long, call MPI_Test or its kin, and so on; for
 * tests/integration/test_native_wait.py, which builds it as a program and as a shared library.
 *
 * CALL is test, testall, testany, testsome, iprobe, improbe or status, or fortran or f08 if it is built with
 * testing_ranks.f90: COUNT times, and nothing arrives meanwhile. With `traffic` each rank sends COUNT messages to the
 * others by turns, as MPIRandomAccess of HPCC does, and receives as many. With `ring` ranks wait for their turn and
 * show rounds and process ids in the file RING until that has `stop`.
 * The rank that slept most prints how often it asked, its voluntary switches, and its microseconds asleep and on a
 * processor. Asleep is who is neither on a processor nor waiting for one, so other tasks do not change it.
 */
#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { TAG = 1, SILENT = 2 };

struct account {
    uint64_t wall, processor, waited, switches;
};

static uint64_t work_time, count;

static uint64_t now(clockid_t clock)
{
    struct timespec time;

    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
}

static void work(void)
{
    uint64_t end = now(CLOCK_MONOTONIC) + work_time;

    while (now(CLOCK_MONOTONIC) < end)
        ;
}

/* Clocks in one order at the begin and the other at the end: a pause between two of them never looks like sleep. */
static struct account account(int at_end)
{
    struct account result = {0};
    struct rusage usage;
    FILE *file;

    if (at_end) {
        result.wall = now(CLOCK_MONOTONIC);
        result.processor = now(CLOCK_THREAD_CPUTIME_ID);
    }
    file = fopen("/proc/thread-self/schedstat", "r");
    if (!file || fscanf(file, "%*u %lu", &result.waited) != 1)
        abort();
    fclose(file);
    getrusage(RUSAGE_THREAD, &usage);
    result.switches = (uint64_t)usage.ru_nvcsw;
    if (!at_end) {
        result.processor = now(CLOCK_THREAD_CPUTIME_ID);
        result.wall = now(CLOCK_MONOTONIC);
    }
    return result;
}

#ifdef FORTRAN
void fortran_test_(MPI_Fint *request, MPI_Fint *done);
void f08_test_(MPI_Fint *request, MPI_Fint *done);
#endif

/* One call that finds nothing; whether it did. */
static int ask(const char *call, MPI_Request *requests)
{
    int flag = 0, index, indices[2];
    MPI_Message message;

    if (!strcmp(call, "test"))
        MPI_Test(requests, &flag, MPI_STATUS_IGNORE);
    else if (!strcmp(call, "testall"))
        MPI_Testall(2, requests, &flag, MPI_STATUSES_IGNORE);
    else if (!strcmp(call, "testany"))
        MPI_Testany(2, requests, &index, &flag, MPI_STATUS_IGNORE);
    else if (!strcmp(call, "testsome"))
        MPI_Testsome(2, requests, &flag, indices, MPI_STATUSES_IGNORE);
    else if (!strcmp(call, "iprobe"))
        MPI_Iprobe(MPI_ANY_SOURCE, TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    else if (!strcmp(call, "improbe"))
        MPI_Improbe(MPI_ANY_SOURCE, TAG, MPI_COMM_WORLD, &flag, &message, MPI_STATUS_IGNORE);
    else if (!strcmp(call, "status"))
        MPI_Request_get_status(requests[0], &flag, MPI_STATUS_IGNORE);
#ifdef FORTRAN
    else if (!strcmp(call, "fortran") || !strcmp(call, "f08")) {
        MPI_Fint request = MPI_Request_c2f(requests[0]), done = 0;

        (call[1] == 'o' ? fortran_test_ : f08_test_)(&request, &done);
        flag = done;
    }
#endif
    else
        MPI_Abort(MPI_COMM_WORLD, 2);
    return !flag;
}

static uint64_t silence(const char *call, int rank, int ranks, struct account *end)
{
    int in[2] = {-1, -1};
    MPI_Request requests[2];

    for (int i = 0; i < 2; i++)
        MPI_Irecv(&in[i], 1, MPI_INT, (rank + 1) % ranks, SILENT, MPI_COMM_WORLD, &requests[i]);
    for (uint64_t i = 0; i < count; i++) {
        work();
        if (!ask(call, requests))
            MPI_Abort(MPI_COMM_WORLD, 3);
    }
    *end = account(1);
    MPI_Barrier(MPI_COMM_WORLD); /* so that nothing arrives before all have asked */
    for (int i = 0; i < 2; i++)
        MPI_Send(&i, 1, MPI_INT, (rank + ranks - 1) % ranks, SILENT, MPI_COMM_WORLD);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    if (in[0] != 0 || in[1] != 1)
        MPI_Abort(MPI_COMM_WORLD, 4);
    return count;
}

static uint64_t traffic(int rank, int ranks, struct account *end)
{
    uint64_t sent = 0, received = 0, asked = 0, in, out;
    int others = ranks - 1, done;
    MPI_Request receive, send = MPI_REQUEST_NULL;

    MPI_Irecv(&in, 1, MPI_UINT64_T, MPI_ANY_SOURCE, TAG, MPI_COMM_WORLD, &receive);
    while (sent < count || received < count) {
        asked++;
        work();
        if (received < count) {
            MPI_Test(&receive, &done, MPI_STATUS_IGNORE);
            if (done && ++received < count)
                MPI_Irecv(&in, 1, MPI_UINT64_T, MPI_ANY_SOURCE, TAG, MPI_COMM_WORLD, &receive);
        }
        MPI_Test(&send, &done, MPI_STATUS_IGNORE);
        if (done && sent < count) {
            out = sent;
            MPI_Isend(&out, 1, MPI_UINT64_T, (rank + 1 + (int)sent++ % others) % ranks, TAG, MPI_COMM_WORLD, &send);
        }
    }
    *end = account(1);
    MPI_Wait(&send, MPI_STATUS_IGNORE);
    return asked;
}

struct ring {
    volatile uint64_t rounds, stop, pids[4];
};

/* The last round is announced to all. */
static uint64_t ring(int rank, int ranks, struct account *end)
{
    const char *path = getenv("RING");
    int file = path ? open(path, O_RDWR) : -1, to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    struct ring *shown = mmap(NULL, sizeof *shown, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    uint64_t token[2] = {0, 0}, rounds = 0;

    if (shown == MAP_FAILED || ranks > 4)
        MPI_Abort(MPI_COMM_WORLD, 5);
    shown->pids[rank] = (uint64_t)getpid();
    while (!token[1]) {
        rounds++;
        if (rank == 0) {
            token[0] = rounds;
            token[1] = shown->stop;
            MPI_Send(token, 2, MPI_UINT64_T, to, TAG, MPI_COMM_WORLD);
        }
        MPI_Recv(token, 2, MPI_UINT64_T, from, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (token[0] != rounds)
            MPI_Abort(MPI_COMM_WORLD, 6);
        if (rank == 0)
            shown->rounds = rounds;
        else
            MPI_Send(token, 2, MPI_UINT64_T, to, TAG, MPI_COMM_WORLD);
    }
    *end = account(1);
    return rounds;
}

int testing_ranks(const char *call, uint64_t nanoseconds, uint64_t times)
{
    int rank, ranks, word = 0;
    struct account begin, end;
    uint64_t asked;
    int64_t asleep;
    struct {
        double asleep;
        int rank;
    } mine, most;

    work_time = nanoseconds;
    count = times;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 0; i < ranks; i++) /* connections are made by the first message */
        MPI_Bcast(&word, 1, MPI_INT, i, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    begin = account(0);
    if (!strcmp(call, "traffic"))
        asked = traffic(rank, ranks, &end);
    else if (!strcmp(call, "ring"))
        asked = ring(rank, ranks, &end);
    else
        asked = silence(call, rank, ranks, &end);
    asleep = (int64_t)((end.wall - begin.wall) - (end.processor - begin.processor) - (end.waited - begin.waited));
    if (end.switches == begin.switches) /* then its hypervisor took the processor away */
        asleep = 0;
    mine.asleep = (double)asleep;
    mine.rank = rank;
    MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE_INT, MPI_MAXLOC, MPI_COMM_WORLD);
    if (rank == most.rank) {
        printf("{\"asked\": %lu, \"switches\": %lu, \"asleep\": %ld, \"processor\": %lu}\n", asked,
               end.switches - begin.switches, asleep / 1000, (end.processor - begin.processor) / 1000);
        fflush(stdout);
    }
    return MPI_Finalize();
}

int main(int argc, char **argv)
{
    return argc == 4 ? testing_ranks(argv[1], strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10)) : 2;
}
