/*
 * ring ROUNDS SIZE [EVERY TILES MODE]: the ranks of a ring send each other SIZE bytes through portals and numbered
 * messages through mailboxes, all beside the program, with a signal to all and back before every round. After EVERY
 * rounds a rank moves itself to the next free tile, with everything under way.
 */
#include "tile.h"

#define PORT 4
#define PORTAL 2
#define NOTES 6

struct note {
    int rank, round, number;
};

static int rank, ranks, left, right;
static unsigned all;
static unsigned char *sent, *received;

static void fail(const char *what, long got, long wanted)
{
    say("failed: %s: %ld, not %ld\n", what, got, wanted);
    abort_ranks(1);
}

static void require(const char *what, long got, long wanted)
{
    if (got != wanted)
        fail(what, got, wanted);
}

static unsigned char pattern(int from, int round, long at)
{
    return (unsigned char)(from * 31 + round * 7 + at * 13 + (at >> 8));
}

static void meet(int first)
{
    unsigned others = all & ~(1u << info(INFO_PROCESS));

    if (rank == 0) {
        require("all to one", sync_wait(1, others), 0);
        require("one to all", sync_signal(2, others), 0);
    } else {
        require("all to one", sync_signal(1, 1u << first), 0);
        require("one to all", sync_wait(2, 1u << first), 0);
    }
}

static void finish(const char *what, int operation, long wanted, int process)
{
    struct mail_from from = {-1, -1};
    long result = operation_test(operation, &from);

    if (result == -11)
        result = operation_wait(operation, &from);
    require(what, result, wanted);
    if (process >= 0)
        require("its sender", from.process, process);
}

static void go_round(int round, long size)
{
    struct note out[NOTES], in[NOTES];
    int sends[NOTES], receives[NOTES], bulk_out, bulk_in;

    for (long at = 0; at < size; at++)
        sent[at] = pattern(rank, round, at);
    bulk_out = start_portal_send(right, PORTAL, round, sent, (size_t)size); /* before it is allowed */
    require("allow", portal_allow(PORTAL, left, round, (size_t)size), 0);
    require("allow twice", portal_allow(PORTAL, left, round, (size_t)size), -16);
    for (int i = 0; i < NOTES; i++) {
        receives[i] = start_mail_receive(PORT, &in[i], sizeof(in[i]));
        out[i] = (struct note){rank, round, i};
        sends[i] = start_mail_send(right, PORT, &out[i], sizeof(out[i]));
    }
    bulk_in = start_portal_receive(PORTAL, received, (size_t)size);
    if (bulk_out < 0 || bulk_in < 0 || receives[NOTES - 1] < 0 || sends[NOTES - 1] < 0)
        fail("start", bulk_in, 0);
    for (int i = 0; i < NOTES; i++) {
        finish("send", sends[i], sizeof(out[i]), -1);
        finish("receive", receives[i], sizeof(in[i]), left);
        if (in[i].round != round || in[i].number != i)
            fail("order", in[i].round * 100 + in[i].number, round * 100 + i);
    }
    finish("bulk out", bulk_out, size, -1);
    finish("bulk in", bulk_in, size, -1);
    for (long at = 0; at < size; at++)
        if (received[at] != pattern((rank + ranks - 1) % ranks, round, at))
            fail("bytes", at, size);
}

int main(int argc, char **argv)
{
    long rounds = number_of(argv[1]), size = number_of(argv[2]), every = argc > 3 ? number_of(argv[3]) : 0;
    long tiles = argc > 4 ? number_of(argv[4]) : 0;
    int mode = argc > 5 ? (int)number_of(argv[5]) : MODE_DIRECT, moved = 0;

    rank = info(INFO_RANK);
    ranks = info(INFO_RANKS);
    sent = grow((int)(size / PAGE_SIZE + 1));
    received = grow((int)(size / PAGE_SIZE + 1));
    for (int other = 0; other < ranks; other++) {
        int process;

        while ((process = info_member(other)) == -11)
            thread_yield();
        all |= 1u << process;
    }
    left = info_member((rank + ranks - 1) % ranks);
    right = info_member((rank + 1) % ranks);
    require("portal without leave", start_portal_receive(PORTAL, received, 8), -13);
    for (int round = 0; round < rounds; round++) {
        meet(info_member(0));
        go_round(round, size);
        if (every && round % every == every - 1)
            for (int step = 1; step < tiles; step++)
                if (move_to((int)((info(INFO_TILE) + step) % tiles), mode) == 0) {
                    moved++;
                    break;
                }
    }
    meet(info_member(0));
    say("ok %ld rounds, %d moves\n", rounds, moved);
    return 0;
}
