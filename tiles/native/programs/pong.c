/*
 * pong SIZE COUNT [PROCESS [TURNS]]: without PROCESS it answers every message until one of size 1 comes; with it, it
 * sends COUNT messages of SIZE bytes there, waits for each answer, and prints the nanoseconds of the median round trip;
 * with TURNS so often.
 */
#include "tile.h"

#define PORT 3
#define COUNT_MOST 4000
#define WARM 50

static int64_t times[COUNT_MOST];

static void sort(long count)
{
    for (long gap = count / 2; gap; gap /= 2)
        for (long i = gap; i < count; i++) {
            int64_t value = times[i];
            long at = i;

            for (; at >= gap && times[at - gap] > value; at -= gap)
                times[at] = times[at - gap];
            times[at] = value;
        }
}

static int answer(void)
{
    struct mail_from from;
    char bytes[MAIL_SIZE];
    int size;

    say("ready\n");
    while ((size = mail_receive(PORT, bytes, sizeof(bytes), &from)) > 1)
        if (mail_send(from.process, PORT, bytes, (size_t)size) != size)
            return 1;
    return 0;
}

static bool exchange(int peer, size_t size, long count)
{
    char bytes[MAIL_SIZE] = {0};

    for (long i = -WARM; i < count; i++) {
        int64_t begin = clock_ns();

        if (mail_send(peer, PORT, bytes, size) != (int)size ||
            mail_receive(PORT, bytes, sizeof(bytes), NULL) != (int)size)
            return false;
        if (i >= 0)
            times[i] = clock_ns() - begin;
    }
    return true;
}

int main(int argc, char **argv)
{
    long size = argc > 1 ? number_of(argv[1]) : 8, count = argc > 2 ? number_of(argv[2]) : 1000;
    int peer = argc > 3 ? (int)number_of(argv[3]) : 0;
    long turns = argc > 4 ? number_of(argv[4]) : 1;

    if (!peer)
        return answer();
    if (size < 2 || size > MAIL_SIZE || count < 1 || count > COUNT_MOST)
        return 2;
    for (long turn = 0; turn < turns; turn++) {
        if (!exchange(peer, (size_t)size, count))
            return 1;
        sort(count);
        say("median %ld\n", times[count / 2]);
    }
    mail_send(peer, PORT, "", 1);
    return 0;
}
