/* Many processes and threads that come, go and wait for one another. */
#include "objects.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum {
    PAGE = 4096,
    FORKS = 4, /* in a lap */
    INHERITED = 64,
    THREADS = 8,
    PATIENCE_MS = 30000,
};

static uint8_t (*pages)[PAGE];
static unsigned laps;

static const char *map(size_t count)
{
    pages = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(pages != MAP_FAILED);
    return OK;
}

static uint8_t content(size_t page, unsigned version)
{
    return (uint8_t)((page * 31 + version) * 2654435761U >> 24 | 1);
}

static int holds(size_t page, uint8_t byte)
{
    for (size_t i = 0; i < PAGE; i++)
        if (pages[page][i] != byte)
            return 0;
    return 1;
}

/* The inherited pages, then the pages that it wrote itself. */
static _Noreturn void be_a_child(unsigned seed)
{
    for (size_t page = 0; page < INHERITED; page++)
        if (!holds(page, content(page, laps)))
            _exit(1);
    for (size_t page = seed % 4; page < INHERITED; page += 4)
        memset(pages[page], content(page, laps + seed), PAGE);
    for (size_t page = 0; page < INHERITED; page++)
        if (!holds(page, content(page, laps + (page % 4 == seed % 4 ? seed : 0))))
            _exit(2);
    _exit(0);
}

static const char *make_forks(void) { return map(INHERITED); }
static const char *work_forks(void)
{
    laps++;
    for (size_t page = 0; page < INHERITED; page++)
        memset(pages[page], content(page, laps), PAGE);
    for (unsigned i = 1; i <= FORKS; i++) {
        pid_t made = fork();

        NEED(made >= 0);
        if (!made)
            be_a_child(i);
    }
    for (int i = 0; i < FORKS; i++) {
        int status;

        NEED(wait(&status) > 0);
        if (status)
            return wrong("a child ended with %x", (unsigned)status);
    }
    for (size_t page = 0; page < INHERITED; page++)
        if (!holds(page, content(page, laps)))
            return wrong("page %zu is not its parent's any more", page);
    return OK;
}

/* Threads by turns; each has a page, and all sleep but one. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned turn;
static _Atomic unsigned turns, spoiled;

static void *take_turns(void *argument)
{
    size_t own = (size_t)(uintptr_t)argument;

    for (unsigned version = 0;; version++) {
        pthread_mutex_lock(&lock);
        while (turn != own)
            pthread_cond_wait(&changed, &lock);
        if (!holds(own, version ? content(own, version) : 0))
            spoiled = (unsigned)own + 1;
        memset(pages[own], content(own, version + 1), PAGE);
        turn = (turn + 1) % THREADS;
        turns++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}
static const char *make_threads(void)
{
    const char *problem = map(THREADS);

    for (uintptr_t i = 0; i < THREADS && !*problem; i++) {
        pthread_t thread;

        NEED(!pthread_create(&thread, NULL, take_turns, (void *)i));
    }
    return problem;
}
static const char *work_threads(void)
{
    unsigned before = turns;

    for (int ms = 0; turns - before < THREADS; ms++) {
        if (ms >= PATIENCE_MS)
            return wrong("a thread does not take its turn, which is %u", turn);
        sleep_ms(1);
    }
    return spoiled ? wrong("the page of thread %u differs from its last write", spoiled - 1) : OK;
}

/* Processes that end or call exec while they have threads: at any time one has only half of them left. */
static void *rest(void *argument)
{
    for (;;)
        pause();
    return argument;
}
static const char *make_ending(void) { return OK; }
static const char *work_ending(void)
{
    int status;
    pid_t made = fork();

    NEED(made >= 0);
    if (!made) {
        for (int i = 0; i < THREADS; i++) {
            pthread_t thread;

            pthread_create(&thread, NULL, rest, NULL);
        }
        if (laps % 2)
            execl("/bin/true", "true", (char *)NULL);
        _exit(0);
    }
    laps++;
    NEED(waitpid(made, &status, 0) == made);
    return status ? wrong("a child ended with %x", (unsigned)status) : OK;
}

/* Parents that the kernel holds until their child ends or calls exec. */
static const char *make_vforks(void) { return OK; }
static const char *work_vforks(void)
{
    static const struct timespec pause = {0, 5000000};
    int status;
    pid_t made = vfork();

    NEED(made >= 0);
    if (!made) {
        nanosleep(&pause, NULL);
        if (++laps % 2)
            execl("/bin/true", "true", (char *)NULL);
        _exit(0);
    }
    NEED(waitpid(made, &status, 0) == made);
    return status ? wrong("a child ended with %x", (unsigned)status) : OK;
}

/* /tmp/memory_writer: mappings that come, go, grow, move, and are dropped (native/tests/memory_writer.c). */
static const char *make_churn(void) { NEED(!access("/tmp/memory_writer", X_OK)); return OK; }
static const char *work_churn(void)
{
    char seed[16];
    int status;
    pid_t made;

    snprintf(seed, sizeof seed, "%u", ++laps);
    made = fork_helper();
    NEED(made >= 0);
    if (!made) {
        execl("/tmp/memory_writer", "memory_writer", "0.3", seed, (char *)NULL);
        _exit(1);
    }
    NEED(waitpid(made, &status, 0) == made);
    return status ? wrong("memory_writer with seed %u ended with %x", laps, (unsigned)status) : OK;
}

#define CASE(name) {"busy_" #name, make_##name, work_##name}
const struct activity crowds[] = {CASE(forks), CASE(threads), CASE(ending), CASE(vforks), CASE(churn), {0}};
