/*
 * busy THREADS PAGES [MS [WRITTEN]]: the first thread and so many more compute, to be moved; MS 0 is for ever. Each
 * writes a random word of the first WRITTEN of PAGES grown pages (default: of all) in every step, a few nanoseconds
 * apart. So WRITTEN is the working set: within a fraction of a millisecond every line of it has been written.
 */
#include "tile.h"

#define STEPS 10000 /* between two looks at the clock */

static volatile unsigned long *pages;
static long page_count, written;
static volatile int stop;

static unsigned long compute(unsigned long value)
{
    for (int i = 0; i < STEPS; i++) {
        value = value * 6364136223846793005u + 1442695040888963407u;
        if (written)
            pages[(value >> 33) % ((unsigned long)written * (PAGE_SIZE / sizeof(*pages)))] = value;
    }
    return value;
}

static long work(void *argument)
{
    unsigned long value = (unsigned long)argument;

    while (!stop)
        value = compute(value);
    return (long)value;
}

int main(int argc, char **argv)
{
    long threads = argc > 1 ? number_of(argv[1]) : 0, ms = argc > 3 ? number_of(argv[3]) : 0;
    int64_t end = clock_ns() + ms * 1000000;

    page_count = argc > 2 ? number_of(argv[2]) : 0;
    written = argc > 4 && number_of(argv[4]) < page_count ? number_of(argv[4]) : page_count;
    if (page_count && !(pages = grow((int)page_count))) {
        say("failed: no %ld pages\n", page_count);
        return 1;
    }
    for (long i = 0; i < page_count * (PAGE_SIZE / 8); i++)
        pages[i] = (unsigned long)i;
    for (long i = 0; i < threads; i++)
        if (thread_create(work, (void *)i) < 0) {
            say("failed: no %ld threads\n", threads);
            return 1;
        }
    say("ready\n");
    for (unsigned long value = (unsigned long)threads; !ms || clock_ns() < end; )
        value = compute(value);
    stop = 1;
    return 0;
}
