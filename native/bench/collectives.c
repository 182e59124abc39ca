/*
 * wherry-collectives: times of collectives of all ranks, by operation and size.
 *
 *   mpirun -n RANKS ... wherry-collectives SIZES ROUNDS WARM [OPERATION]
 *
 * MPI_Barrier, and five operations with SIZES of five sizes (the first, the last, and those between) in bytes that a
 * rank puts in (for all, of MPI_Alltoall); or one OPERATION alone. WARM calls, with a barrier before each, do not count:
 * connections are made in them, and libraries that try several ways choose one. Then ROUNDS times all ranks begin at
 * one moment; a time is that of the rank that ends last. So the clock (CLOCK_MONOTONIC) must be the same at all ranks:
 * they run on one machine. Rank 0 writes a JSON line for each case: seconds of all rounds. Results are checked, and
 * compared with those of the library's own, by the profiling name. Exit code 1: one was wrong.
 */
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OPERATIONS = 6, SIZES = 5, BARRIER = 0, BCAST, REDUCE, ALLREDUCE, ALLGATHER, ALLTOALL };

static const char *const names[OPERATIONS] = {"barrier", "bcast", "reduce", "allreduce", "allgather", "alltoall"};
static const int of_one[SIZES] = {8, 1 << 10, 8 << 10, 64 << 10, 1 << 20};
static const int of_all[SIZES] = {8, 256, 2 << 10, 16 << 10, 64 << 10};
static double begin_after = 0.1; /* s, in which all ranks learn when to begin */
static int rank, ranks;
static double *sent, *got;

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

#define DEFINE_CALL(name, P)                                                                                           \
    static void name(int what, int count)                                                                              \
    {                                                                                                                  \
        switch (what) {                                                                                                \
        case BARRIER:                                                                                                  \
            P##MPI_Barrier(MPI_COMM_WORLD);                                                                            \
            break;                                                                                                     \
        case BCAST:                                                                                                    \
            P##MPI_Bcast(got, count, MPI_DOUBLE, 0, MPI_COMM_WORLD);                                                   \
            break;                                                                                                     \
        case REDUCE:                                                                                                   \
            P##MPI_Reduce(sent, got, count, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);                                   \
            break;                                                                                                     \
        case ALLREDUCE:                                                                                                \
            P##MPI_Allreduce(sent, got, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);                                   \
            break;                                                                                                     \
        case ALLGATHER:                                                                                                \
            P##MPI_Allgather(sent, count, MPI_DOUBLE, got, count, MPI_DOUBLE, MPI_COMM_WORLD);                         \
            break;                                                                                                     \
        default:                                                                                                       \
            P##MPI_Alltoall(sent, count, MPI_DOUBLE, got, count, MPI_DOUBLE, MPI_COMM_WORLD);                          \
        }                                                                                                              \
    }

DEFINE_CALL(call, )
DEFINE_CALL(call_own, P)

static void fill(int what, int count)
{
    for (int i = 0; i < count * (what == ALLTOALL ? ranks : 1); i++)
        sent[i] = rank + i % 7;
    for (int i = 0; i < count * (what >= ALLGATHER ? ranks : 1); i++)
        got[i] = what == BCAST && !rank ? i % 7 : -1;
}

/* Whether the result of the last call is right. */
static bool is_right(int what, int count)
{
    bool right = true;

    for (int from = 0; from < (what >= ALLGATHER ? ranks : 1); from++)
        for (int i = 0; i < count; i++) {
            double found = got[from * count + i], wanted = i % 7;

            if (what == REDUCE || what == ALLREDUCE)
                wanted = ranks * (double)(i % 7) + ranks * (ranks - 1) / 2.0;
            else if (what >= ALLGATHER)
                wanted = from + (what == ALLTOALL ? (rank * count + i) % 7 : i % 7);
            right = right && (found == wanted || (what == REDUCE && rank));
        }
    return right;
}

static uint64_t sum_of_result(int what, int count)
{
    uint64_t sum = 0, word;

    for (int i = 0; i < count * (what >= ALLGATHER ? ranks : 1); i++) {
        memcpy(&word, &got[i], sizeof word);
        sum = (sum ^ word) * 0x100000001b3U;
    }
    return what == REDUCE && rank ? 0 : sum;
}

/* Whether the library's own collective leaves the same bits. */
static bool is_like_own(int what, int count)
{
    uint64_t ours = sum_of_result(what, count);

    fill(what, count);
    call_own(what, count);
    return sum_of_result(what, count) == ours;
}

/* Seconds from the moment at which all begin. */
static double time_once(int what, int count)
{
    struct timespec left;
    double begin = now(), all, end;

    PMPI_Allreduce(&begin, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    all += begin_after;
    begin = all - now();
    if (begin > 0) {
        left.tv_sec = (time_t)begin;
        left.tv_nsec = (long)((begin - (double)left.tv_sec) * 1e9);
        nanosleep(&left, NULL);
    }
    call(what, count);
    end = now();
    PMPI_Allreduce(MPI_IN_PLACE, &end, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return end - all;
}

/* Libraries prepare themselves in the first allreduce; the time of another one sets how long ranks are to wait. */
static void prepare(void)
{
    double took = 0, most = 0;

    for (int i = 0; i < 2; i++) {
        took = now();
        PMPI_Allreduce(&took, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        took = now() - took;
    }
    PMPI_Allreduce(&took, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    begin_after = 2 * most > begin_after ? 2 * most : begin_after;
}

static bool one_case(int what, int bytes, int rounds, int warm)
{
    int count = bytes / (int)sizeof(double), right, all;

    fill(what, count);
    for (int i = 0; i < warm; i++) {
        PMPI_Barrier(MPI_COMM_WORLD); /* nobody has to keep messages of calls to come */
        call(what, count);
    }
    if (!rank)
        printf("{\"what\": \"%s\", \"bytes\": %d, \"seconds\": [", names[what], bytes);
    for (int i = 0; i < rounds; i++) {
        double seconds;

        fill(what, count);
        seconds = time_once(what, count);
        if (!rank)
            printf("%s%.6f", i ? ", " : "", seconds);
    }
    right = is_right(what, count);
    right = is_like_own(what, count) && right; /* all ranks make its collective */
    PMPI_Allreduce(&right, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (!rank)
        printf("], \"right\": %s}\n", all ? "true" : "false");
    fflush(stdout);
    return all;
}

/* Bytes that a rank puts into the i-th case of an operation. */
static int bytes_in(int what, int i, int sizes)
{
    int size = i && i == sizes - 1 ? SIZES - 1 : i;

    if (what == BARRIER)
        return 0;
    return what < ALLGATHER ? of_one[size] : of_all[size];
}

static int operation_of(const char *name)
{
    for (int what = 0; what < OPERATIONS; what++)
        if (!strcmp(names[what], name))
            return what;
    return -1;
}

int main(int words, char **word)
{
    int sizes = words > 3 ? atoi(word[1]) : 0, rounds = words > 3 ? atoi(word[2]) : 0;
    int first = words == 5 ? operation_of(word[4]) : 0, last = words == 5 ? first : OPERATIONS - 1;
    size_t room = 1;
    bool right = true;

    MPI_Init(&words, &word);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (words > 5 || sizes < 1 || sizes > SIZES || rounds < 1 || first < 0) {
        fprintf(stderr, "usage: wherry-collectives SIZES ROUNDS WARM [OPERATION] (1 to %d sizes)\n", SIZES);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (int what = first; what <= last; what++) {
        size_t bytes = (size_t)bytes_in(what, sizes - 1, sizes) * (what < ALLGATHER ? 1 : (size_t)ranks);

        room = bytes > room ? bytes : room;
    }
    sent = malloc(room);
    got = malloc(room);
    if (!sent || !got)
        MPI_Abort(MPI_COMM_WORLD, 2);
    prepare();
    for (int what = first; what <= last; what++)
        for (int i = 0; i < (what ? sizes : 1); i++)
            right = one_case(what, bytes_in(what, i, sizes), rounds, atoi(word[3])) && right;
    free(sent);
    free(got);
    MPI_Finalize();
    return !right;
}
