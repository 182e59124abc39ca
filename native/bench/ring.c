/*
 * wherry-ring: an MPI program that notices every byte that a move has changed, lost or doubled.
 *
 *   mpirun ... wherry-ring [--seconds S] [--input] [--size BYTES] [--memory MIB] [--pages N] [--pause MS] [--json]
 *
 * Each iteration, every rank sends BYTES to the next rank and checks every byte that the one before sent: the
 * content follows from iteration and sender. Every 16th iteration is a checked MPI_Allreduce, and rank 0 decides for
 * all whether to continue: for S seconds, with --input no longer than until its standard input ends. MIB MiB of memory
 * per rank are checked and rewritten page by page, N pages of 4 KiB in each iteration (16), which a move finds
 * changed; all are checked at the end. With --pause each rank sleeps so long in each iteration, which leaves the CPU to
 * others. Rank 0 prints "iteration N" every second (not with --json), and at the end one
 * JSON line: sums over the ranks, and the largest gap between two iterations at any rank with the time when it began;
 * written_bytes are those of that memory alone. Times are CLOCK_REALTIME: inside a moved node other clocks hide the
 * gap. Exit code 1: some content was wrong.
 */
#include <getopt.h>
#include <mpi.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, COLLECTIVE_EVERY = 16, COMPLAINTS_MAX = 5 };

struct ring {
    int rank, ranks;
    double seconds, pause; /* s */
    size_t size, page_count, next_page, pages_a_time;
    bool json, until_input_ends;
    uint64_t *memory, *counters; /* counters: the number that each page was last written with */
    uint8_t *out, *in;
    uint64_t iteration, checked_bytes, written_bytes, errors;
    double gap, gap_at; /* s, epoch s */
};

static double now_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The finalizer of splitmix64 (Steele, Lea, Flood 2014): neighbouring inputs give unrelated words. */
static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

static void complain(struct ring *ring, const char *what, uint64_t where)
{
    if (ring->errors++ < COMPLAINTS_MAX)
        fprintf(stderr, "wherry-ring: rank %d, iteration %llu: wrong %s at %llu\n", ring->rank,
                (unsigned long long)ring->iteration, what, (unsigned long long)where);
}

/* The word at `index` of the message that `source` sends in this iteration. */
static uint64_t message_word(const struct ring *ring, int source, size_t index)
{
    return mix(mix(ring->iteration << 16 | (uint64_t)source) + index);
}

static void fill_message(struct ring *ring)
{
    for (size_t at = 0; at < ring->size; at += 8) {
        uint64_t word = message_word(ring, ring->rank, at / 8);

        memcpy(ring->out + at, &word, ring->size - at < 8 ? ring->size - at : 8);
    }
}

static void check_message(struct ring *ring, int source)
{
    for (size_t at = 0; at < ring->size; at += 8) {
        uint64_t word = message_word(ring, source, at / 8);

        if (memcmp(ring->in + at, &word, ring->size - at < 8 ? ring->size - at : 8) != 0) {
            complain(ring, "message byte", at);
            break;
        }
    }
    ring->checked_bytes += ring->size;
}

static void exchange(struct ring *ring)
{
    int next = (ring->rank + 1) % ring->ranks, before = (ring->rank + ring->ranks - 1) % ring->ranks, count = 0;
    MPI_Status status;

    fill_message(ring);
    memset(ring->in, 0xee, ring->size);
    MPI_Sendrecv(ring->out, (int)ring->size, MPI_BYTE, next, 1, ring->in, (int)ring->size, MPI_BYTE, before, 1,
                 MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    if (count != (int)ring->size)
        complain(ring, "message length", (uint64_t)count);
    check_message(ring, before);
}

static void check_sum(struct ring *ring)
{
    uint64_t mine = ring->iteration * (uint64_t)(ring->rank + 1), sum = 0;
    uint64_t right = ring->iteration * (uint64_t)ring->ranks * (uint64_t)(ring->ranks + 1) / 2;

    MPI_Allreduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (sum != right)
        complain(ring, "sum", sum);
    ring->checked_bytes += sizeof sum;
}

static void write_page(struct ring *ring, size_t page, uint64_t counter)
{
    uint64_t *words = ring->memory + page * WORDS;

    ring->counters[page] = counter;
    for (size_t i = 0; i < WORDS; i++)
        words[i] = mix((uint64_t)page << 32 ^ counter) + i;
}

static void check_page(struct ring *ring, size_t page)
{
    const uint64_t *words = ring->memory + page * WORDS;
    uint64_t first = mix((uint64_t)page << 32 ^ ring->counters[page]);

    for (size_t i = 0; i < WORDS; i++)
        if (words[i] != first + i) {
            complain(ring, "memory page", page);
            break;
        }
    ring->checked_bytes += PAGE;
}

static void touch_memory(struct ring *ring)
{
    for (size_t i = 0; i < ring->pages_a_time && i < ring->page_count; i++) {
        check_page(ring, ring->next_page);
        write_page(ring, ring->next_page, ring->iteration);
        ring->written_bytes += PAGE;
        ring->next_page = (ring->next_page + 1) % ring->page_count;
    }
}

static void pause_for(double seconds)
{
    struct timespec span = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))};

    if (seconds > 0)
        nanosleep(&span, NULL);
}

static bool input_ended(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char ignored[4096];

    return poll(&input, 1, 0) > 0 && read(STDIN_FILENO, ignored, sizeof ignored) <= 0;
}

static void run(struct ring *ring)
{
    double start = now_seconds(), last = start, said = start;
    int going = 1;

    while (going) {
        double now;

        ring->iteration++;
        exchange(ring);
        touch_memory(ring);
        pause_for(ring->pause);
        if (ring->iteration % COLLECTIVE_EVERY == 0) {
            check_sum(ring);
            going = now_seconds() - start < ring->seconds;
            if (ring->rank == 0 && ring->until_input_ends && input_ended())
                going = 0;
            MPI_Bcast(&going, 1, MPI_INT, 0, MPI_COMM_WORLD);
        }
        now = now_seconds();
        if (now - last > ring->gap) {
            ring->gap = now - last;
            ring->gap_at = last;
        }
        last = now;
        if (ring->rank == 0 && !ring->json && now - said >= 1) {
            printf("iteration %llu\n", (unsigned long long)ring->iteration);
            fflush(stdout);
            said = now;
        }
    }
    for (size_t page = 0; page < ring->page_count; page++)
        check_page(ring, page);
}

/* Returns the errors of all ranks. */
static uint64_t report(const struct ring *ring, double seconds)
{
    uint64_t mine[3] = {ring->checked_bytes, ring->written_bytes, ring->errors}, sums[3];
    double gap[2] = {ring->gap, ring->gap_at}, *gaps = malloc(2 * sizeof *gaps * (size_t)ring->ranks);

    if (!gaps)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Allreduce(mine, sums, 3, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    MPI_Gather(gap, 2, MPI_DOUBLE, gaps, 2, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    for (int rank = 0; ring->rank == 0 && rank < ring->ranks; rank++)
        if (gaps[2 * rank] > gap[0])
            memcpy(gap, gaps + 2 * rank, sizeof gap);
    if (ring->rank == 0)
        printf("{\"iterations\": %llu, \"checked_bytes\": %llu, \"written_bytes\": %llu, \"errors\": %llu, "
               "\"max_gap_ms\": %.3f, \"max_gap_at\": %.6f, \"seconds\": %.3f, \"ranks\": %d}\n",
               (unsigned long long)ring->iteration, (unsigned long long)sums[0], (unsigned long long)sums[1],
               (unsigned long long)sums[2], 1e3 * gap[0], gap[1], seconds, ring->ranks);
    fflush(stdout);
    free(gaps);
    return sums[2];
}

static void read_options(int argc, char **argv, struct ring *ring)
{
    static const struct option options[] = {{"seconds", required_argument, NULL, 's'},
                                            {"input", no_argument, NULL, 'i'},
                                            {"size", required_argument, NULL, 'b'},
                                            {"memory", required_argument, NULL, 'm'},
                                            {"pages", required_argument, NULL, 'p'},
                                            {"pause", required_argument, NULL, 'w'},
                                            {"json", no_argument, NULL, 'j'},
                                            {0}};
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
        if (option == 's')
            ring->seconds = atof(optarg);
        else if (option == 'i')
            ring->until_input_ends = true;
        else if (option == 'b')
            ring->size = strtoul(optarg, NULL, 10);
        else if (option == 'm')
            ring->page_count = strtoul(optarg, NULL, 10) * (1 << 20) / PAGE;
        else if (option == 'p')
            ring->pages_a_time = strtoul(optarg, NULL, 10);
        else if (option == 'w')
            ring->pause = 1e-3 * atof(optarg);
        else if (option == 'j')
            ring->json = true;
        else
            optind = argc + 1;
    }
    if (optind != argc || ring->seconds < 0 || ring->size < 1 || ring->size > INT32_MAX || ring->pages_a_time < 1 ||
        ring->pause < 0) {
        if (ring->rank == 0)
            fputs("usage: wherry-ring [--seconds S] [--input] [--size BYTES] [--memory MIB] [--pages N] [--pause MS]"
                  " [--json]\n",
                  stderr);
        MPI_Finalize();
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct ring ring = {.seconds = 10, .size = 64 << 10, .pages_a_time = 16};
    uint64_t errors;
    double start;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &ring.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ring.ranks);
    read_options(argc, argv, &ring);
    ring.in = malloc(ring.size);
    ring.out = malloc(ring.size);
    ring.memory = malloc(ring.page_count * PAGE + 1);
    ring.counters = calloc(ring.page_count + 1, sizeof *ring.counters);
    if (!ring.in || !ring.out || !ring.memory || !ring.counters) {
        fprintf(stderr, "wherry-ring: rank %d has no memory for --size and --memory\n", ring.rank);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (size_t page = 0; page < ring.page_count; page++)
        write_page(&ring, page, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    start = now_seconds();
    run(&ring);
    errors = report(&ring, now_seconds() - start);
    free(ring.in);
    free(ring.out);
    free(ring.memory);
    free(ring.counters);
    MPI_Finalize();
    return errors != 0;
}
