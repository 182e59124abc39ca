/* busy THREADS PAGES [MS]: so many more threads compute on so many grown pages, to be moved; MS 0 is for ever. */
#include "tile.h"

static volatile unsigned long *pages;
static long page_count;
static volatile int stop;

static long work(void *argument)
{
    unsigned long value = (unsigned long)argument;

    while (!stop) {
        value = value * 6364136223846793005u + 1442695040888963407u;
        if (page_count)
            pages[(value >> 33) % (unsigned long)page_count * (PAGE_SIZE / sizeof(*pages))] = value;
    }
    return (long)value;
}

int main(int argc, char **argv)
{
    long threads = argc > 1 ? number_of(argv[1]) : 0, ms = argc > 3 ? number_of(argv[3]) : 0;
    int64_t end = clock_ns() + ms * 1000000;

    page_count = argc > 2 ? number_of(argv[2]) : 0;
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
    for (unsigned long value = 1; !ms || clock_ns() < end; ) {
        for (int i = 0; i < 10000; i++)
            __asm__ volatile("" : "+r"(value));
    }
    stop = 1;
    return 0;
}
