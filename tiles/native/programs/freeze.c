/*
 * freeze ROUNDS: a thread freezes the others, which only count, and looks whether any still does; two such threads take
 * turns. It may be moved meanwhile.
 */
#include "tile.h"

#define COUNTERS 4
#define FREEZERS 2
#define LOOKS 200000

static volatile long counts[COUNTERS];
static volatile int stop;
static long rounds, wrong;

static long count(void *argument)
{
    while (!stop)
        counts[(long)argument]++;
    return 0;
}

static long freeze(void *argument)
{
    long before[COUNTERS];

    (void)argument;
    for (long i = 0; i < rounds; i++) {
        threads_freeze();
        for (int n = 0; n < COUNTERS; n++)
            before[n] = counts[n];
        for (int look = 0; look < LOOKS; look++)
            wrong += counts[look % COUNTERS] != before[look % COUNTERS];
        wrong += threads_unfreeze() != 0;
        thread_yield();
    }
    return 0;
}

int main(int argc, char **argv)
{
    int counters[COUNTERS], freezers[FREEZERS], none;
    long before, grown = 0;

    rounds = argc > 1 ? number_of(argv[1]) : 10;
    for (long i = 0; i < COUNTERS; i++)
        counters[i] = thread_create(count, (void *)i);
    for (long i = 0; i < FREEZERS; i++)
        freezers[i] = thread_create(freeze, NULL);
    for (int i = 0; i < FREEZERS; i++)
        thread_join(freezers[i], NULL);
    for (before = counts[0]; counts[0] == before; ) /* they go on */
        thread_yield();
    none = threads_unfreeze();
    stop = 1;
    for (int i = 0; i < COUNTERS; i++) {
        thread_join(counters[i], NULL);
        grown += counts[i] > 0;
    }
    if (wrong || grown != COUNTERS || none != -1)
        say("failed: %ld looks, %ld counters, %d\n", wrong, grown, none);
    else
        say("ok %ld\n", rounds);
    return wrong || grown != COUNTERS || none != -1;
}
