/*
 * wherry-pingpong: time of a message between two ranks, by its size.
 *
 *   mpirun -n 2 ... wherry-pingpong [--max BYTES] [--repeat N] [--warm N] [--above BYTES --few N] [--budget BYTES]
 *                                   [--also BYTES] [--only BYTES]... [--count INTERFACE [--pause SECONDS]]
 *
 * Rank 0 sends and waits for the answer, rank 1 answers: sizes are the powers of two from 1 byte to --max (default 1
 * GiB), and --also, each with a barrier, --warm exchanges that do not count (30) and --repeat that do (100). Sizes
 * above --above do --few of both, at most; with --budget no size has more of either than fit into so many bytes, but an
 * exchange that counts. With --only there are no other sizes. --count adds `counts` to each line: the counts during the
 * repetitions that count, of both ranks together (counters.h). With --pause rank 0 writes {"begin": SIZE} before them
 * and {"end": SIZE} behind, and both ranks then stand still so long, that somebody outside may count too; the first
 * size is then 0, an exchange of nothing, which shows what these lines and pauses cost. Rank 0 writes a JSON line for
 * each size: seconds are half of a round trip; `mean` is the time of all repetitions over their number, the others are
 * of single ones, with one look at the clock for each. Every 8th byte (and the last) of the answer is compared with the
 * sent bytes, outside the times. The clock is CLOCK_MONOTONIC: no node moves meanwhile. Exit code 1: some content was
 * wrong.
 */
#include <getopt.h>
#include <limits.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "counters.h"

enum { TAG = 1, STEP = 8, ONLY_MAX = 16 };

struct pingpong {
    int rank;
    size_t max, above, also, budget, only[ONLY_MAX], only_count;
    long repeat, warm, few;
    const char *interface; /* whose counts are asked for, or NULL */
    double pause;
    uint8_t *buffer;
    double *times; /* s of each round trip */
    uint64_t errors;
};

static double now_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void exchange(const struct pingpong *game, size_t size)
{
    if (game->rank == 0) {
        MPI_Send(game->buffer, (int)size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
        MPI_Recv(game->buffer, (int)size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(game->buffer, (int)size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(game->buffer, (int)size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
    }
}

static uint8_t content(size_t size, size_t at)
{
    return (uint8_t)(at / STEP * 31 + size % 251 + 1);
}

/*
 * Rank 0 only sends its own bytes, rank 1 begins with other ones: bytes that are right at the end went there and back.
 */
static void fill(struct pingpong *game, size_t size)
{
    if (game->rank != 0) {
        memset(game->buffer, 0, size);
        return;
    }
    for (size_t at = 0; at < size; at += STEP)
        game->buffer[at] = content(size, at);
    game->buffer[size - 1] = content(size, size - 1);
}

static void check(struct pingpong *game, size_t size)
{
    size_t wrong = game->buffer[size - 1] != content(size, size - 1);

    for (size_t at = 0; at + 1 < size; at += STEP)
        wrong += game->buffer[at] != content(size, at);
    if (wrong)
        fprintf(stderr, "wherry-pingpong: rank %d, %zu bytes: content is wrong\n", game->rank, size);
    game->errors += wrong != 0;
}

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The counts of both ranks: null for counters that a rank does not have. */
static void print_counts(const long long counts[2][COUNTERS])
{
    printf(", \"counts\": {");
    for (int i = 0; i < COUNTERS; i++) {
        printf("%s\"%s\": ", i ? ", " : "", counter_names[i]);
        if (counts[0][i] < 0 || counts[1][i] < 0)
            printf("null");
        else
            printf("%lld", counts[0][i] + counts[1][i]);
    }
    printf("}");
}

static void report(struct pingpong *game, size_t size, long repeat, long warm, double total,
                   const long long counts[2][COUNTERS])
{
    double mean = total / (double)repeat / 2;

    qsort(game->times, (size_t)repeat, sizeof *game->times, compare_times);
    printf("{\"bytes\": %zu, \"repeat\": %ld, \"warm\": %ld, \"mean\": %.9g, \"median\": %.9g, \"min\": %.9g, "
           "\"p95\": %.9g, \"p999\": %.9g, \"max\": %.9g, \"bits_per_second\": %.6g, \"errors\": %llu",
           size, repeat, warm, mean, (game->times[(repeat - 1) / 2] + game->times[repeat / 2]) / 4,
           game->times[0] / 2, game->times[(repeat * 95 - 1) / 100] / 2,
           game->times[(repeat * 999 - 1) / 1000] / 2, game->times[repeat - 1] / 2,
           8 * (double)size / mean, (unsigned long long)game->errors);
    if (game->interface)
        print_counts(counts);
    printf("}\n");
    fflush(stdout);
}

static void stand_still(const struct pingpong *game, const char *mark, size_t size)
{
    struct timespec left = {.tv_sec = (time_t)game->pause};

    left.tv_nsec = (long)(1e9 * (game->pause - (double)left.tv_sec));
    if (game->pause <= 0)
        return;
    if (game->rank == 0) {
        printf("{\"%s\": %zu}\n", mark, size);
        fflush(stdout);
    }
    while (nanosleep(&left, &left) < 0)
        continue;
}

static long at_most(const struct pingpong *game, size_t size, long count, long least)
{
    long fit = game->budget ? (long)(game->budget / size) : count;

    if (game->above && size > game->above && game->few < count)
        count = game->few;
    count = fit < count ? fit : count;
    return count > least ? count : least;
}

static void exchange_nothing(const struct pingpong *game)
{
    if (game->pause > 0) {
        MPI_Barrier(MPI_COMM_WORLD);
        stand_still(game, "begin", 0);
        stand_still(game, "end", 0);
    }
}

static void measure(struct pingpong *game, size_t size)
{
    long repeat = at_most(game, size, game->repeat, 1), warm = at_most(game, size, game->warm, 0);
    long long before[COUNTERS], mine[COUNTERS], counts[2][COUNTERS] = {0};
    double start, last;

    fill(game, size);
    MPI_Barrier(MPI_COMM_WORLD);
    for (long i = 0; i < warm; i++)
        exchange(game, size);
    stand_still(game, "begin", size);
    if (game->interface)
        counters_read(game->interface, before);
    start = last = now_seconds();
    for (long i = 0; i < repeat; i++) {
        double now;

        exchange(game, size);
        now = now_seconds();
        game->times[i] = now - last;
        last = now;
    }
    if (game->interface) {
        counters_read(game->interface, mine);
        for (int i = 0; i < COUNTERS; i++)
            mine[i] = mine[i] < 0 || before[i] < 0 ? -1 : mine[i] - before[i];
    }
    stand_still(game, "end", size);
    if (game->interface)
        MPI_Gather(mine, COUNTERS, MPI_LONG_LONG, counts, COUNTERS, MPI_LONG_LONG, 0, MPI_COMM_WORLD);
    check(game, size);
    if (game->rank == 0)
        report(game, size, repeat, warm, last - start, (const long long(*)[COUNTERS])counts);
}

static void refuse(const struct pingpong *game, const char *why)
{
    if (game->rank == 0)
        fprintf(stderr,
                "wherry-pingpong: %s\nusage: mpirun -n 2 wherry-pingpong [--max BYTES] [--repeat N] [--warm N] "
                "[--above BYTES --few N] [--budget BYTES] [--also BYTES] [--only BYTES]... "
                "[--count INTERFACE [--pause SECONDS]]\n",
                why);
    MPI_Finalize();
    exit(2);
}

static long number(const struct pingpong *game, const char *text, long least, long most)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (end == text || *end || value < least || value > most)
        refuse(game, "an option's number is out of range");
    return value;
}

static void read_options(int argc, char **argv, struct pingpong *game)
{
    static const struct option options[] = {{"max", required_argument, NULL, 'm'},
                                            {"repeat", required_argument, NULL, 'r'},
                                            {"warm", required_argument, NULL, 'w'},
                                            {"above", required_argument, NULL, 'a'},
                                            {"few", required_argument, NULL, 'f'},
                                            {"also", required_argument, NULL, 'o'},
                                            {"budget", required_argument, NULL, 'b'},
                                            {"only", required_argument, NULL, 's'},
                                            {"count", required_argument, NULL, 'c'},
                                            {"pause", required_argument, NULL, 'p'},
                                            {0}};
    const long largest = 1 << 30, most = 1000000;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
        if (option == 'm')
            game->max = (size_t)number(game, optarg, 1, largest);
        else if (option == 'r')
            game->repeat = number(game, optarg, 1, most);
        else if (option == 'w')
            game->warm = number(game, optarg, 0, most);
        else if (option == 'a')
            game->above = (size_t)number(game, optarg, 1, largest);
        else if (option == 'f')
            game->few = number(game, optarg, 1, most);
        else if (option == 'o')
            game->also = (size_t)number(game, optarg, 1, largest);
        else if (option == 'b')
            game->budget = (size_t)number(game, optarg, 1, LONG_MAX);
        else if (option == 's' && game->only_count == ONLY_MAX)
            refuse(game, "too many sizes: at most 16 with --only");
        else if (option == 's')
            game->only[game->only_count++] = (size_t)number(game, optarg, 1, largest);
        else if (option == 'c')
            game->interface = optarg;
        else if (option == 'p')
            game->pause = (double)number(game, optarg, 0, most);
        else
            refuse(game, "unknown option");
    }
    if (optind != argc)
        refuse(game, "too many words");
    if (game->pause > 0 && !game->interface)
        refuse(game, "--pause is for --count");
}

static size_t largest_size(const struct pingpong *game)
{
    size_t largest = game->only_count ? game->also : game->max;

    for (size_t i = 0; i < game->only_count; i++)
        largest = game->only[i] > largest ? game->only[i] : largest;
    return game->also > largest ? game->also : largest;
}

int main(int argc, char **argv)
{
    struct pingpong game = {.max = 1 << 30, .repeat = 100, .warm = 30, .few = 10};
    unsigned long long mine, all = 0;
    int ranks;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &game.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    read_options(argc, argv, &game);
    if (ranks != 2)
        refuse(&game, "it takes exactly two ranks");
    game.buffer = malloc(largest_size(&game));
    game.times = calloc((size_t)game.repeat, sizeof *game.times);
    if (!game.buffer || !game.times) {
        fprintf(stderr, "wherry-pingpong: rank %d has no memory for messages of %zu bytes\n", game.rank,
                largest_size(&game));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    exchange_nothing(&game);
    for (size_t i = 0; i < game.only_count; i++)
        measure(&game, game.only[i]);
    for (size_t size = 1; game.only_count == 0 && size <= game.max; size *= 2)
        measure(&game, size);
    if (game.also)
        measure(&game, game.also);
    mine = game.errors;
    MPI_Allreduce(&mine, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    free(game.buffer);
    free(game.times);
    MPI_Finalize();
    return all != 0;
}
