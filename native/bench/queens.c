/*
 * wherry-queens: counts the ways to place N queens on a board of N x N, none of which attacks another, with MPI.
 *
 *   mpirun ... wherry-queens [--n N] [--depth D] [--dynamic] [--json]
 *
 * The ways to place queens in the first D rows are the pieces of work, all found by every rank. Statically, rank r of R
 * counts pieces r, r + R, r + 2R and so on, and the ranks talk once, at the end. With --dynamic rank 0 gives them out,
 * one at a time to the rank that asks, and counts none itself unless it is alone. A count is compared with the known
 * one. Rank 0 prints in the form of the NAS programs: seconds, solutions, verification; with --json one JSON line.
 * Exit code 1: the count is wrong.
 */
#include <getopt.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { SMALLEST = 4, LARGEST = 20, TAG_ASK = 1, TAG_PIECE, NO_PIECE = -1 };

/* OEIS A000170, from N = 4. */
static const uint64_t KNOWN[] = {2,       10,       4,        40,        92,         352,        724,
                                 2680,    14200,    73712,    365596,    2279184,    14772512,   95815104,
                                 666090624, 4968057848, 39029188884};

struct place {
    uint32_t columns, left, right; /* the squares of the next row that the queens so far attack */
};

struct pieces {
    struct place *all;
    size_t count, room;
};

struct options {
    int n, depth;
    bool dynamic, json;
};

static uint64_t count_below(uint32_t full, struct place at)
{
    uint32_t free = full & ~(at.columns | at.left | at.right);
    uint64_t found = 0;

    if (at.columns == full)
        return 1;
    while (free) {
        uint32_t queen = free & -free;

        free ^= queen;
        found += count_below(full, (struct place){at.columns | queen, (at.left | queen) << 1, (at.right | queen) >> 1});
    }
    return found;
}

static void find_pieces(uint32_t full, struct place at, int rows, struct pieces *pieces)
{
    uint32_t free = full & ~(at.columns | at.left | at.right);

    if (rows == 0) {
        if (pieces->count == pieces->room) {
            pieces->room = pieces->room ? 2 * pieces->room : 1024;
            pieces->all = realloc(pieces->all, pieces->room * sizeof *pieces->all);
            if (!pieces->all)
                MPI_Abort(MPI_COMM_WORLD, 1);
        }
        pieces->all[pieces->count++] = at;
        return;
    }
    while (free) {
        uint32_t queen = free & -free;

        free ^= queen;
        find_pieces(full, (struct place){at.columns | queen, (at.left | queen) << 1, (at.right | queen) >> 1}, rows - 1,
                    pieces);
    }
}

/* Gives a piece to each rank that asks, and at the end none. */
static void give_out(size_t count, int ranks)
{
    long next = 0;

    for (int working = ranks - 1; working > 0;) {
        long piece = next < (long)count ? next++ : NO_PIECE;
        MPI_Status status;

        MPI_Recv(NULL, 0, MPI_BYTE, MPI_ANY_SOURCE, TAG_ASK, MPI_COMM_WORLD, &status);
        MPI_Send(&piece, 1, MPI_LONG, status.MPI_SOURCE, TAG_PIECE, MPI_COMM_WORLD);
        working -= piece == NO_PIECE;
    }
}

static long ask(void)
{
    long piece;

    MPI_Send(NULL, 0, MPI_BYTE, 0, TAG_ASK, MPI_COMM_WORLD);
    MPI_Recv(&piece, 1, MPI_LONG, 0, TAG_PIECE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return piece;
}

static uint64_t count_pieces(const struct options *options, uint32_t full, const struct pieces *pieces, int rank,
                             int ranks)
{
    uint64_t found = 0;

    if (options->dynamic && ranks > 1) {
        if (rank == 0)
            give_out(pieces->count, ranks);
        else
            for (long piece = ask(); piece != NO_PIECE; piece = ask())
                found += count_below(full, pieces->all[piece]);
    } else {
        for (size_t piece = (size_t)rank; piece < pieces->count; piece += (size_t)ranks)
            found += count_below(full, pieces->all[piece]);
    }
    return found;
}

static struct options read_options(int argc, char **argv, int rank)
{
    static const struct option known[] = {{"n", required_argument, NULL, 'n'},
                                          {"depth", required_argument, NULL, 'd'},
                                          {"dynamic", no_argument, NULL, 'y'},
                                          {"json", no_argument, NULL, 'j'},
                                          {0}};
    struct options options = {.n = 13, .depth = 3};
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) >= 0) {
        if (option == 'n')
            options.n = atoi(optarg);
        else if (option == 'd')
            options.depth = atoi(optarg);
        else if (option == 'y')
            options.dynamic = true;
        else if (option == 'j')
            options.json = true;
        else
            optind = argc + 1;
    }
    if (optind != argc || options.n < SMALLEST || options.n > LARGEST || options.depth < 1 ||
        options.depth > options.n) {
        if (rank == 0)
            fprintf(stderr, "usage: wherry-queens [--n N] [--depth D] [--dynamic] [--json], N from %d to %d, D to N\n",
                    SMALLEST, LARGEST);
        MPI_Finalize();
        exit(2);
    }
    return options;
}

static void report(const struct options *options, uint64_t solutions, size_t pieces, double seconds, int ranks)
{
    bool right = solutions == KNOWN[options->n - SMALLEST];

    if (options->json) {
        printf("{\"n\": %d, \"solutions\": %llu, \"right\": %s, \"pieces\": %zu, \"seconds\": %.6f, \"ranks\": %d}\n",
               options->n, (unsigned long long)solutions, right ? "true" : "false", pieces, seconds, ranks);
        return;
    }
    printf(" N-Queens, N = %d, %zu pieces, %s, %d processes\n", options->n, pieces,
           options->dynamic ? "given out" : "divided", ranks);
    printf(" Solutions       = %llu\n", (unsigned long long)solutions);
    printf(" Time in seconds = %.3f\n", seconds);
    printf(" Verification    = %s\n", right ? "SUCCESSFUL" : "UNSUCCESSFUL");
}

int main(int argc, char **argv)
{
    struct pieces pieces = {0};
    struct options options;
    uint64_t mine, solutions;
    uint32_t full;
    double start, seconds, slowest;
    int rank, ranks;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    options = read_options(argc, argv, rank);
    full = (UINT32_C(1) << options.n) - 1;
    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    find_pieces(full, (struct place){0}, options.depth, &pieces);
    mine = count_pieces(&options, full, &pieces, rank, ranks);
    MPI_Allreduce(&mine, &solutions, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    seconds = MPI_Wtime() - start;
    MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        report(&options, solutions, pieces.count, slowest, ranks);
    free(pieces.all);
    MPI_Finalize();
    return solutions != KNOWN[options.n - SMALLEST];
}
