/*
 * wherry-crowd: a program of many processes, threads, mappings or files, for a move of its node. No MPI.
 *
 *   wherry-crowd PROCESSES BYTES THREADS MAPPINGS FILES
 *
 * Each process fills BYTES of memory, has THREADS more threads that sleep, MAPPINGS mappings of a page and FILES open files, and makes a
 * step each 10 ms: it writes a page. The first one prints "ready" when all are. When its standard input ends each
 * compares its memory with its writes, and it prints one JSON line: processes, the longest time between two steps of
 * any of them in seconds (by CLOCK_REALTIME, as other clocks may hide that a node was frozen), pages and files that are
 * wrong. Exit code 1: some are.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, STEP_MS = 10, STACK = 64 << 10 };

struct wanted {
    long processes, bytes, threads, mappings, files;
};

struct result {
    double gap;
    uint64_t wrong;
};

struct things {
    uint64_t *memory;
    uint8_t *mapped;
    int *files;
};

static void fail(const char *what)
{
    fprintf(stderr, "wherry-crowd: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_REALTIME, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *sleep_for_ever(void *none)
{
    for (;;)
        pause();
    return none;
}

static void *pages(long bytes)
{
    void *made = bytes ? mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : NULL;

    if (made == MAP_FAILED)
        fail("mmap");
    return made;
}

static uint64_t word_of(long number, long page)
{
    return (uint64_t)number << 40 | (uint64_t)(page + 1);
}

/* Every other page may only be read, so each is a mapping. */
static uint8_t *many_mappings(long count)
{
    uint8_t *mapped = pages(count * PAGE);

    for (long i = 0; i < count; i++) {
        mapped[i * PAGE] = (uint8_t)(i % 251);
        if (i % 2 && mprotect(mapped + i * PAGE, PAGE, PROT_READ))
            fail("mprotect");
    }
    return mapped;
}

static const char *name_of_file(long number)
{
    static char name[64];

    snprintf(name, sizeof(name), "/tmp/wherry-crowd.%d.%ld", (int)getpid(), number);
    return name;
}

static int *many_files(long count)
{
    int *files = calloc((size_t)count + 1, sizeof(*files));

    for (long i = 0; files && i < count; i++) {
        files[i] = open(name_of_file(i), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (files[i] < 0 || write(files[i], &i, sizeof(i)) != sizeof(i))
            fail(name_of_file(i));
    }
    return files;
}

static struct things make(const struct wanted *wanted, long number)
{
    struct things made = {pages(wanted->bytes), many_mappings(wanted->mappings), many_files(wanted->files)};
    pthread_attr_t small;

    for (long page = 0; page < wanted->bytes / PAGE; page++)
        made.memory[page * PAGE / 8] = word_of(number, page);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK);
    for (long i = 0; i < wanted->threads; i++) {
        pthread_t thread;

        if ((errno = pthread_create(&thread, &small, sleep_for_ever, NULL)))
            fail("pthread_create");
    }
    return made;
}

static uint64_t count_wrong(const struct wanted *wanted, long number, const struct things *made)
{
    uint64_t wrong = 0;

    for (long page = 0; page < wanted->bytes / PAGE; page++)
        wrong += made->memory[page * PAGE / 8] != word_of(number, page);
    for (long i = 0; i < wanted->mappings; i++)
        wrong += made->mapped[i * PAGE] != (uint8_t)(i % 251);
    for (long i = 0; i < wanted->files; i++) {
        long found;

        wrong += pread(made->files[i], &found, sizeof(found), 0) != sizeof(found) || found != i;
        unlink(name_of_file(i));
    }
    return wrong;
}

/* Makes steps until the descriptor ends; `before`: when the process was ready. */
static struct result work(const struct wanted *wanted, long number, const struct things *made, int end, double before)
{
    struct pollfd told = {.fd = end, .events = POLLIN};
    struct result result = {0};
    char byte;

    for (long page = 0;; page++) {
        bool is_over = poll(&told, 1, STEP_MS) > 0 && read(end, &byte, 1) <= 0;
        double time = now();

        if (time - before > result.gap)
            result.gap = time - before;
        before = time;
        if (is_over)
            break;
        if (wanted->bytes) {
            page %= wanted->bytes / PAGE;
            made->memory[page * PAGE / 8] = word_of(number, page);
        }
    }
    result.wrong = count_wrong(wanted, number, made);
    return result;
}

static void be_another(const struct wanted *wanted, long number, const int ready[2], const int end[2], const int results[2])
{
    struct things made;
    struct result result;
    double began;

    close(end[1]); /* else it would not end with the first process */
    made = make(wanted, number);
    began = now();
    if (write(ready[1], "+", 1) != 1)
        fail("ready");
    result = work(wanted, number, &made, end[0], began);
    if (write(results[1], &result, sizeof(result)) != sizeof(result))
        fail("results");
    _exit(0);
}

static long number_of(const char *text)
{
    char *rest;
    long number = strtol(text, &rest, 10);

    if (*rest || number < 0) {
        fprintf(stderr, "wherry-crowd: %s is no count\n", text);
        exit(2);
    }
    return number;
}

int main(int argc, char **argv)
{
    int ready[2], end[2], results[2];
    struct wanted wanted;
    struct things made;
    struct result all;
    struct rlimit files;
    double began;
    char byte;

    if (argc != 6) {
        fprintf(stderr, "usage: wherry-crowd PROCESSES BYTES THREADS MAPPINGS FILES\n");
        return 2;
    }
    wanted = (struct wanted){number_of(argv[1]), number_of(argv[2]), number_of(argv[3]), number_of(argv[4]), number_of(argv[5])};
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (pipe(ready) || pipe(end) || pipe(results))
        fail("pipe");
    for (long number = 1; number < wanted.processes; number++) {
        pid_t child = fork();

        if (child < 0)
            fail("fork");
        if (!child)
            be_another(&wanted, number, ready, end, results);
    }
    made = make(&wanted, 0);
    for (long number = 1; number < wanted.processes; number++)
        if (read(ready[0], &byte, 1) != 1)
            fail("ready");
    began = now();
    printf("ready\n");
    fflush(stdout);
    all = work(&wanted, 0, &made, STDIN_FILENO, began);
    close(end[1]);
    for (long number = 1; number < wanted.processes; number++) {
        struct result one;

        if (read(results[0], &one, sizeof(one)) != sizeof(one))
            fail("results");
        all.wrong += one.wrong;
        all.gap = one.gap > all.gap ? one.gap : all.gap;
    }
    while (wait(NULL) > 0)
        continue;
    printf("{\"processes\": %ld, \"gap\": %.6f, \"wrong\": %lu}\n", wanted.processes, all.gap, (unsigned long)all.wrong);
    return all.wrong != 0;
}
