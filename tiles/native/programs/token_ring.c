/*
 * token_ring MINE NEXT COUNT [MOVES TILES MODE]: a ring of processes that pass numbered messages on, each in order and once.
 * Process 1 of the ring (MINE 0) starts them. After every few messages it moves itself to the next free tile.
 */
#include "tile.h"

struct note {
    long number, hops;
};

static void fail(const char *what, long got, long wanted)
{
    say("failed: %s: %ld, not %ld\n", what, got, wanted);
    process_exit(1);
}

int main(int argc, char **argv)
{
    long mine = number_of(argv[1]), next = number_of(argv[2]), count = number_of(argv[3]);
    long every = argc > 4 ? number_of(argv[4]) : 0, tiles = argc > 5 ? number_of(argv[5]) : 0;
    int mode = argc > 6 ? (int)number_of(argv[6]) : MODE_DIRECT, moved = 0, result;
    struct note note = {0, 0};

    if (mine == 0)
        for (long ahead = 0; ahead < 8; ahead++) { /* so many are under way at a time */
            note.number = ahead;
            while (mail_send((int)next, 5, &note, sizeof(note)) == -3)
                thread_yield(); /* it is not there yet */
        }
    for (long i = 0; i < count; i++) {
        if (mail_receive(5, &note, sizeof(note), NULL) != sizeof(note))
            fail("size", 0, sizeof(note));
        if (note.number != i)
            fail("order", note.number, i);
        note.hops++;
        if (mine == 0)
            note.number += 8;
        if (mine != 0 || note.number < count) {
            result = mail_send((int)next, 5, &note, sizeof(note));
            if (result != sizeof(note))
                fail("send", result, sizeof(note));
        }
        if (every && i % every == every - 1)
            for (int step = 1; step < tiles; step++)
                if (move_to((int)((info(INFO_TILE) + step) % tiles), mode) == 0) {
                    moved++;
                    break;
                }
    }
    say("ok %ld messages, %d moves\n", count, moved);
    return 0;
}
