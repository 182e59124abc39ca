/* The program of `wherry bench run launcher`: launcher_rank MODE ARGS, compiled by the mpicc of each MPI.
 *
 * watch           notes signals in got.RANK, and that it is ready in up.RANK; ends soon after the first
 * yes             writes lines without end
 * steps           writes a line every 0.6 s without a flush
 * lines COUNT     writes COUNT numbered lines to both streams
 * read            rank 0 reads its standard input and prints how much it was
 * bytes           rank 0 reads five bytes of its standard input
 * exit CODE       rank 1 ends with CODE after MPI_Finalize
 * early CODE      rank 1 ends with CODE without MPI_Finalize
 * abort CODE      rank 1 calls MPI_Abort
 * segv            rank 1 gets SIGSEGV
 * who NAME        each rank prints NAME, its number and the number of ranks
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    int number;
    const char *name;
} SIGNALS[] = {{SIGUSR1, "USR1"}, {SIGUSR2, "USR2"}, {SIGALRM, "ALRM"},
               {SIGTERM, "TERM"}, {SIGINT, "INT"},   {SIGHUP, "HUP"}};
enum { KINDS = sizeof SIGNALS / sizeof SIGNALS[0], TICK = 50000, SOON = 10, LATEST = 1200 };
static volatile sig_atomic_t came[KINDS];

static void note(int number)
{
    for (int kind = 0; kind < KINDS; kind++)
        if (SIGNALS[kind].number == number)
            came[kind] = 1;
}

static FILE *file_of(const char *kind, int rank, const char *mode)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%d", kind, rank);
    return fopen(name, mode);
}

static void watch(int rank)
{
    for (int kind = 0; kind < KINDS; kind++)
        signal(SIGNALS[kind].number, note);
    FILE *up = file_of("up", rank, "w");
    if (up)
        fclose(up);
    for (int tick = 0, left = LATEST; tick < left; tick++) {
        usleep(TICK);
        for (int kind = 0; kind < KINDS; kind++) {
            if (!came[kind])
                continue;
            came[kind] = 0;
            FILE *got = file_of("got", rank, "a");
            if (got) {
                fprintf(got, "%s\n", SIGNALS[kind].name);
                fclose(got);
            }
            if (left == LATEST)
                left = tick + SOON;
        }
    }
}

static void read_all(int rank)
{
    static char block[65536];
    long bytes = 0;
    ssize_t some;
    while (rank == 0 && (some = read(0, block, sizeof block)) > 0)
        bytes += some;
    if (rank == 0)
        printf("%ld bytes\n", bytes);
}

static void read_five(int rank)
{
    char block[5];
    size_t have = 0;
    ssize_t some;
    while (rank == 0 && have < sizeof block && (some = read(0, block + have, sizeof block - have)) > 0)
        have += (size_t)some;
    if (rank == 0)
        printf("%zu bytes\n", have);
}

int main(int count, char **words)
{
    int rank, ranks;
    const char *mode = count > 1 ? words[1] : "", *word = count > 2 ? words[2] : "0";
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!strcmp(mode, "watch"))
        watch(rank);
    while (!strcmp(mode, "yes"))
        puts("yes");
    for (int step = 0; !strcmp(mode, "steps") && step < 4; step++) {
        printf("step %d\n", step);
        usleep(600000);
    }
    for (int line = 0; !strcmp(mode, "lines") && line < atoi(word); line++) {
        printf("rank %d line %d of standard output\n", rank, line);
        fprintf(stderr, "rank %d line %d of standard error\n", rank, line);
    }
    if (!strcmp(mode, "read"))
        read_all(rank);
    if (!strcmp(mode, "bytes"))
        read_five(rank);
    if (!strcmp(mode, "early") && rank == 1)
        _exit(atoi(word));
    if (!strcmp(mode, "abort") && rank == 1)
        MPI_Abort(MPI_COMM_WORLD, atoi(word));
    if (!strcmp(mode, "segv") && rank == 1)
        raise(SIGSEGV);
    if (!strcmp(mode, "who"))
        printf("%s %d of %d\n", word, rank, ranks);
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return !strcmp(mode, "exit") && rank == 1 ? atoi(word) : 0;
}
