/*
 * Does random things with private anonymous memory: for a tracker of writes to follow. For tests of wherry-pager.
 *
 *   memory_writer SECONDS SEED [GENERATION]
 *
 * Each process keeps a table of areas, and each page that was written begins with its own address and a counter whose
 * hash follows, so that every process can check whether its memory has its writes, whatever happens to it from outside.
 * It prints `wrong ADDRESS` and exits 9 when it is not. Threads write in an area that stays where it is. Children
 * inherit all, write for a while and end or call exec; the first process calls exec now and then. Whatever it does, it
 * can be stopped at any time. On SIGTERM it ends as after its time, with a look at all pages.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum {
    PAGE = 4096,
    AREAS = 24,
    AREA_PAGES = 700, /* more than a page table has */
    CHILDREN = 3,
    THREADS = 2,
    THREAD_PAGES = 64,
    GENERATIONS = 1000000,
};

struct area {
    uint8_t *start;
    size_t pages;
    uint8_t *written; /* for each page */
    bool is_shut;     /* PROT_NONE */
};

static struct area areas[AREAS];
static uint64_t state;
static int children;
static bool is_child;
static double until;
static uint8_t *of_threads;

static uint64_t next(uint64_t *from)
{
    *from ^= *from << 13, *from ^= *from >> 7, *from ^= *from << 17;
    return *from;
}

static size_t below(size_t limit)
{
    return next(&state) % limit;
}

/* SIGTERM is blocked from the beginning, and stays pending over exec. */
static bool is_told_to_end(void)
{
    sigset_t pending;

    return !sigpending(&pending) && sigismember(&pending, SIGTERM);
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static uint64_t hash(uint64_t value)
{
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    return (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
}

static _Noreturn void fail(const char *what, const void *address)
{
    fprintf(stderr, "%s %p in %d\n", what, address, getpid());
    _exit(9);
}

/* The counter and its hash, and at times the rest of the page. */
static void write_page(uint8_t *page, uint64_t counter)
{
    uint64_t words[2] = {counter, hash(counter)};

    memcpy(page, words, sizeof(words));
    if (counter % 4 == 0)
        memset(page + sizeof(words), (int)counter, PAGE - sizeof(words));
}

static void check_page(const uint8_t *page, bool is_written)
{
    uint64_t words[2];

    memcpy(words, page, sizeof(words));
    if (is_written ? words[1] != hash(words[0]) : words[0] || words[1])
        fail("wrong", page);
}

static void drop(struct area *area)
{
    if (area->start && munmap(area->start, area->pages * PAGE))
        fail("munmap", area->start);
    free(area->written);
    *area = (struct area){0};
}

/* Sometimes where another one was until now. */
static void make(struct area *area)
{
    uint8_t *place = NULL;
    int fixed = 0;

    if (area->start && below(2)) {
        place = area->start;
        fixed = MAP_FIXED_NOREPLACE;
    }
    drop(area);
    area->pages = 1 + below(below(4) ? 40 : AREA_PAGES);
    area->start = mmap(place, area->pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
    if (area->start == MAP_FAILED)
        area->start = mmap(NULL, area->pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area->start == MAP_FAILED)
        fail("mmap", NULL);
    area->written = calloc(area->pages, 1);
}

static void write_some(struct area *area)
{
    size_t first = below(area->pages), count = 1 + below(below(8) ? 4 : area->pages);

    for (size_t page = first; page < area->pages && page < first + count; page++) {
        write_page(area->start + page * PAGE, next(&state));
        area->written[page] = 1;
    }
}

static void check_some(const struct area *area)
{
    size_t first = below(area->pages);

    for (size_t page = first; page < area->pages && page < first + 16; page++)
        check_page(area->start + page * PAGE, area->written[page]);
}

static void forget_some(struct area *area)
{
    size_t first = below(area->pages), count = 1 + below(area->pages - first);

    if (madvise(area->start + first * PAGE, count * PAGE, MADV_DONTNEED))
        fail("madvise", area->start);
    memset(area->written + first, 0, count);
}

static void clear_some(struct area *area)
{
    size_t page = below(area->pages);

    memset(area->start + page * PAGE, 0, PAGE);
    area->written[page] = 0;
}

/*
 * Grows where it is, or moves, to where `onto` was until now. That fails when the area consists of several mappings; then
 * some of them may have moved all the same (Linux 6.17).
 */
static void move(struct area *area, struct area *onto)
{
    size_t pages = area->pages + below(32);
    uint8_t *place = onto != area && onto->pages >= pages ? onto->start : NULL, *moved;

    if (place) {
        drop(onto);
        moved = mremap(area->start, area->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    } else {
        moved = mremap(area->start, area->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    }
    if (moved == MAP_FAILED) {
        if (place && munmap(place, pages * PAGE))
            fail("munmap", place);
        if (place)
            drop(area);
        return;
    }
    area->start = moved;
    area->written = realloc(area->written, pages);
    memset(area->written + area->pages, 0, pages - area->pages);
    area->pages = pages;
}

static void shut_or_open(struct area *area)
{
    area->is_shut = !area->is_shut;
    if (mprotect(area->start, area->pages * PAGE, area->is_shut ? PROT_NONE : PROT_READ | PROT_WRITE))
        fail("mprotect", area->start);
}

/* As many mappings as it has changes of protection, and back. */
static void split(struct area *area)
{
    size_t page = below(area->pages);

    if (mprotect(area->start + page * PAGE, PAGE, PROT_READ) ||
        (below(2) && mprotect(area->start + page * PAGE, PAGE, PROT_NONE)) ||
        mprotect(area->start + page * PAGE, PAGE, PROT_READ | PROT_WRITE))
        fail("mprotect", area->start);
}

static void read_untouched(const struct area *area)
{
    check_page(area->start + (area->pages - 1) * PAGE, area->written[area->pages - 1]);
}

static void use_heap(void)
{
    static void *kept[64];
    size_t at = below(64), size = 1 + below(1 << below(18));

    free(kept[at]);
    if ((kept[at] = malloc(size)))
        memset(kept[at], (int)below(256), size);
}

static void advise(struct area *area)
{
    static const int advice[] = {MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_POPULATE_WRITE, MADV_DOFORK};

    madvise(area->start, area->pages * PAGE, advice[below(4)]);
}

static void *write_in_thread(void *context)
{
    uint64_t own = (uint64_t)(uintptr_t)context * 77 + 1;
    uint8_t *pages = of_threads + (uintptr_t)context * THREAD_PAGES * PAGE;
    bool written[THREAD_PAGES] = {false};

    for (;;) {
        struct timespec nap = {.tv_nsec = 1000000};
        size_t page = next(&own) % THREAD_PAGES;

        check_page(pages + page * PAGE, written[page]);
        write_page(pages + page * PAGE, next(&own));
        written[page] = true;
        if (next(&own) % 16 == 0)
            nanosleep(&nap, NULL);
    }
    return NULL;
}

static void start_threads(void)
{
    of_threads = mmap(NULL, (size_t)THREADS * THREAD_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                      -1, 0);
    for (uintptr_t i = 0; i < THREADS; i++) {
        pthread_t thread;

        if (of_threads == MAP_FAILED || pthread_create(&thread, NULL, write_in_thread, (void *)i))
            fail("thread", NULL);
    }
}

static _Noreturn void start_again(char **argv, double left)
{
    char time_left[32], seed[32], generation[32];
    char *arguments[] = {argv[0], time_left, seed, generation, NULL};

    snprintf(time_left, sizeof(time_left), "%.3f", left);
    snprintf(seed, sizeof(seed), "%llu", (unsigned long long)(next(&state) >> 1));
    snprintf(generation, sizeof(generation), "%d", is_child ? GENERATIONS : 1);
    execv("/proc/self/exe", arguments);
    fail("exec", NULL);
}

static void fork_one(char **argv)
{
    int status;
    pid_t child;

    while (waitpid(-1, &status, WNOHANG) > 0) { /* also those from before exec */
        children -= children > 0;
        if (status)
            fail("a child failed", (void *)(uintptr_t)status);
    }
    if (is_child || children >= CHILDREN || (child = fork()) < 0)
        return;
    children += child > 0;
    if (child)
        return;
    is_child = true;
    children = 0;
    state = hash(state + (uint64_t)getpid());
    until = seconds() + 0.001 * (double)below(below(3) ? 50 : 1000);
    if (below(4) == 0)
        start_again(argv, 0.001 * (double)below(500));
}

static void do_something(char **argv)
{
    struct area *area = &areas[below(AREAS)];
    size_t what = below(1000);

    if (what < 3)
        fork_one(argv);
    else if (what < 4 && !is_child && below(3) == 0)
        start_again(argv, until - seconds());
    else if (what < 20)
        use_heap();
    else if (!area->start || what < 60)
        make(area);
    else if (area->is_shut || what < 65)
        shut_or_open(area);
    else if (what < 90)
        forget_some(area);
    else if (what < 110)
        move(area, &areas[below(AREAS)]);
    else if (what < 130)
        split(area);
    else if (what < 150)
        clear_some(area);
    else if (what < 160)
        advise(area);
    else if (what < 180)
        read_untouched(area);
    else if (what < 600)
        write_some(area);
    else
        check_some(area);
}

int main(int argc, char **argv)
{
    sigset_t term;

    if (argc < 3)
        return 2;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    until = seconds() + atof(argv[1]);
    state = hash(strtoull(argv[2], NULL, 10) + 1) | 1;
    is_child = argc > 3 && atoi(argv[3]) == GENERATIONS;
    start_threads();
    while (seconds() < until && !is_told_to_end()) {
        for (int i = 0; i < 20; i++)
            do_something(argv);
        if (below(3) == 0)
            usleep((useconds_t)below(3000));
    }
    for (size_t i = 0; i < AREAS; i++) {
        if (areas[i].is_shut)
            shut_or_open(&areas[i]);
        for (size_t page = 0; areas[i].start && page < areas[i].pages; page++)
            check_page(areas[i].start + page * PAGE, areas[i].written[page]);
    }
    for (int status; wait(&status) > 0;)
        if (status)
            fail("a child failed", (void *)(uintptr_t)status);
    return 0;
}
