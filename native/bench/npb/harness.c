/*
 * Start and end of every NPB program: its class, its clock, what it needs before it starts, the comparison, and the
 * block that NPB's parsers know. A refusal is one line on standard error and exit code 2 of every rank; all ranks come
 * to the same decision, so none is left waiting for another.
 */
#include "npb.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#define GIB (1024.0 * 1024 * 1024)
#define PROCESS_BYTES (48.0 * 1024 * 1024) /* an MPI library's own, for each rank */

static const char class_letters[] = "SWABC";

static struct {
    const char *kernel;
    int rank, ranks, class_index;
    double start;
} run;

int npb_rank(void)
{
    return run.rank;
}

int npb_ranks(void)
{
    return run.ranks;
}

char npb_class(void)
{
    return class_letters[run.class_index];
}

int npb_class_index(void)
{
    return run.class_index;
}

/* Time of day: inside a node that was moved, other clocks hide the downtime. */
double npb_time(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double npb_start(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    return run.start = npb_time();
}

double npb_stop(void)
{
    return npb_time() - run.start;
}

/*
 * Text that follows within 50 ms waits for the next line or the end: each flush wakes the launcher, which, where ranks
 * outnumber processors, takes one from a rank that the others wait for.
 */
void npb_say(const char *format, ...)
{
    static double flushed;
    double since = npb_time() - flushed; /* s; negative when the clock was set back */
    va_list arguments;

    if (run.rank != 0)
        return;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    if (since >= 0 && since < 0.05)
        return;
    fflush(stdout);
    flushed = npb_time();
}

noreturn void npb_refuse(const char *format, ...)
{
    va_list arguments;

    if (npb_rank() == 0) {
        va_start(arguments, format);
        vfprintf(stderr, format, arguments);
        va_end(arguments);
        fputc('\n', stderr);
    }
    MPI_Finalize();
    exit(2);
}

void npb_init(int *argc, char ***argv, const char *kernel)
{
    const char *letter = NULL;

    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &run.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &run.ranks);
    run.kernel = kernel;
    if (*argc == 2 && strlen((*argv)[1]) == 1)
        letter = strchr(class_letters, toupper((unsigned char)(*argv)[1][0]));
    if (!letter)
        npb_refuse("npb: the class is missing or unknown; type one of S, W, A, B, C, as in: %s S", (*argv)[0]);
    run.class_index = (int)(letter - class_letters);
    npb_say("\n NAS Parallel Benchmarks (own implementation of the specification) -- %s Benchmark\n\n"
            " Class %c, total number of processes: %d\n\n", kernel, npb_class(), run.ranks);
}

bool npb_close(const char *what, double got, double right, double tolerance)
{
    double error = fabs((got - right) / right);
    bool close = error <= tolerance; /* false for NaN */

    npb_say(" %-12s %21.13E  relative error %9.2E%s\n", what, got, error, close ? "" : "  FAILURE");
    return close;
}

int npb_report(const struct npb_result *result)
{
    double mine[2] = {result->seconds, result->verified ? 0 : 1}, largest[2]; /* s, failed */
    double rate;

    MPI_Allreduce(mine, largest, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    rate = largest[0] > 0 ? result->mop / largest[0] : 0;
    npb_say("\n\n %s Benchmark Completed.\n", run.kernel);
    npb_say(" Class           = %24c\n", npb_class());
    npb_say(" Size            = %24s\n", result->size);
    npb_say(" Iterations      = %24d\n", result->iterations);
    npb_say(" Time in seconds = %24.4f\n", largest[0]);
    npb_say(" Total processes = %24d\n", run.ranks);
    npb_say(" Active processes= %24d\n", run.ranks);
    npb_say(" Mop/s total     = %24.2f\n", rate);
    npb_say(" Mop/s/process   = %24.2f\n", rate / run.ranks);
    npb_say(" Operation type  = %24s\n", result->operations);
    npb_say(" Verification    = %24s\n", largest[1] > 0 ? "UNSUCCESSFUL" : "SUCCESSFUL");
    npb_say(" Version         = %24s\n\n", "wherry");
    fflush(stdout);
    MPI_Finalize();
    return largest[1] > 0;
}

void npb_require_at_most(int most)
{
    if (npb_ranks() > most)
        npb_refuse("npb: class %c has work for %d processes at most, not for %d; type: mpirun -n %d, or a larger class",
                   npb_class(), most, npb_ranks(), most);
}

void npb_require_power_of_two(int most)
{
    int ranks = npb_ranks(), below = 1;

    while (2 * below <= ranks)
        below *= 2;
    if (below != ranks)
        npb_refuse("npb: this kernel runs on 1, 2, 4, 8, ... processes, not on %d; type: mpirun -n %d or -n %d", ranks,
                   below, 2 * below);
    npb_require_at_most(most);
}

void npb_require_square(int most)
{
    int ranks = npb_ranks(), side = 1;

    while ((side + 1) * (side + 1) <= ranks)
        side++;
    if (side * side != ranks)
        npb_refuse("npb: this kernel runs on 1, 4, 9, 16, ... processes, not on %d; type: mpirun -n %d or -n %d", ranks,
                   side * side, (side + 1) * (side + 1));
    npb_require_at_most(most);
}

/* A number from the line of `path` that begins with `label`; `otherwise` where there is none (as in "max"). */
static double read_number(const char *path, const char *label, double otherwise)
{
    char line[256];
    double value = otherwise;
    FILE *file = fopen(path, "re");

    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, label, strlen(label)) == 0) {
            if (sscanf(line + strlen(label), "%lf", &value) != 1)
                value = otherwise;
            break;
        }
    if (file)
        fclose(file);
    return value;
}

/* A short name for the place that ranks share: the machine (nodes of one host have one kernel), or the node. */
static uint64_t hash_text(const char *text)
{
    uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a */

    for (; *text; text++)
        hash = (hash ^ (uint8_t)*text) * UINT64_C(1099511628211);
    return hash;
}

static uint64_t hash_machine(void)
{
    char line[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (file && !fgets(line, sizeof line, file))
        line[0] = 0;
    if (file)
        fclose(file);
    return hash_text(line);
}

/* Whether /proc/meminfo is that of the node, as in a container that sees its own: a file mounted over the machine's. */
static bool sees_own_memory(void)
{
    struct stat proc, memory;

    return !stat("/proc", &proc) && !stat("/proc/meminfo", &memory) && memory.st_dev != proc.st_dev;
}

/* Sum of `bytes` over the ranks whose `key` is the same as mine. */
static double sum_alike(uint64_t key, double bytes)
{
    struct {
        uint64_t key;
        double bytes;
    } mine = {key, bytes}, *all = npb_allocate((size_t)npb_ranks(), sizeof mine);
    double sum = 0;

    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, MPI_COMM_WORLD);
    for (int rank = 0; rank < npb_ranks(); rank++)
        if (all[rank].key == key)
            sum += all[rank].bytes;
    free(all);
    return sum;
}

struct room {
    double lacks, need, have; /* bytes; lacks > 0: too little */
};

/* Keeps the worst of all limits. */
static void consider(struct room *worst, double need, double have)
{
    if (need - have > worst->lacks)
        *worst = (struct room){need - have, need, have};
}

/* Bytes of the node, as given by the caller, for nodes that cannot see their own control group. */
static double told_memory(void)
{
    const char *text = getenv("NPB_NODE_MEMORY");
    char *end;
    double bytes = text ? strtod(text, &end) : 1e18;

    if (text && (*end || end == text || !(bytes > 0)))
        npb_refuse("npb: NPB_NODE_MEMORY is '%s', which is no number of bytes; type for instance: NPB_NODE_MEMORY=1e9",
                   text);
    return bytes;
}

/*
 * The limits: the free memory of the machine, or of a node that sees only its own, the bytes that the node's control group or the caller allows, and the bytes
 * that one process may have.
 */
void npb_require_memory(double bytes)
{
    const char *cure = npb_class_index() == 0 ? "use fewer processes" : "type a smaller class or use more hosts";
    struct room mine = {0}, *all = npb_allocate((size_t)npb_ranks(), sizeof mine);
    char node[MPI_MAX_PROCESSOR_NAME] = "";
    struct rlimit limit;
    int length;

    MPI_Get_processor_name(node, &length);
    bytes += PROCESS_BYTES;
    consider(&mine, sum_alike(sees_own_memory() ? hash_text(node) : hash_machine(), bytes),
             1024 * read_number("/proc/meminfo", "MemAvailable:", 1e18));
    consider(&mine, sum_alike(hash_text(node), bytes), read_number("/sys/fs/cgroup/memory.max", "", 1e18) -
                                                           read_number("/sys/fs/cgroup/memory.stat", "anon", 0));
    consider(&mine, sum_alike(hash_text(node), bytes), told_memory());
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        consider(&mine, bytes, (double)limit.rlim_cur);
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, MPI_COMM_WORLD);
    for (int rank = 0; rank < npb_ranks(); rank++)
        if (all[rank].lacks > 0)
            npb_refuse("npb: class %c needs %.1f GiB where rank %d runs, and there are %.1f GiB; %s", npb_class(),
                       all[rank].need / GIB, rank, all[rank].have / GIB, cure);
    free(all);
}

void *npb_allocate(size_t count, size_t size)
{
    size_t bytes = (count * size + 63) / 64 * 64;
    void *memory = aligned_alloc(64, bytes ? bytes : 64);

    if (!memory) {
        fprintf(stderr, "npb: rank %d got no %.1f MiB of memory; type a smaller class, or use more nodes\n", npb_rank(),
                (double)bytes / (1 << 20));
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    memset(memory, 0, bytes);
    return memory;
}
