/*
 * forkjoin THREADS ROUNDS: creates so many threads that do nothing, joins them, prints the nanoseconds of each round.
 */
#include "tile.h"

static long nothing(void *argument)
{
    return (long)argument;
}

int main(int argc, char **argv)
{
    long count = argc > 1 ? number_of(argv[1]) : THREAD_MAX - 1, rounds = argc > 2 ? number_of(argv[2]) : 20;
    int threads[THREAD_MAX];

    if (count < 1 || count >= THREAD_MAX)
        return 2;
    for (long round = 0; round < rounds; round++) {
        int64_t begin = clock_ns(), created;

        for (long i = 0; i < count; i++)
            threads[i] = thread_create(nothing, (void *)i);
        created = clock_ns();
        for (long i = 0; i < count; i++)
            if (thread_join(threads[i], NULL) != 0)
                return 1;
        say("%ld %ld\n", created - begin, clock_ns() - created);
    }
    return 0;
}
