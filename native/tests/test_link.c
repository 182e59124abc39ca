/* The link's arithmetic: latency, bandwidth, queue, loss, order, segments, and its commands. */
#include <errno.h>
#include <string.h>

#include "../link/command.h"
#include "../link/delay_queue.h"
#include "../link/shape.h"
#include "check.h"

#define MS INT64_C(1000000)

enum { FRAME = 1250 }; /* 10000 bits */

static struct shape shape_of(int64_t latency_ns, int64_t jitter_ns, uint64_t bandwidth, double loss)
{
    struct shape shape = {.random = 1};
    struct shape_rules rules = {latency_ns, jitter_ns, bandwidth, loss};

    shape_set_rules(&shape, &rules, 0);
    return shape;
}

static void test_latency_and_bandwidth(void)
{
    struct shape shape = shape_of(10 * MS, 0, 10000000, 0);

    CHECK(shape_admit(&shape, 0, FRAME) == 11 * MS);          /* 1 ms at 10 Mbit/s, and 10 ms */
    CHECK(shape_admit(&shape, 0, FRAME) == 12 * MS);          /* waits for the first */
    CHECK(shape_admit(&shape, 100 * MS, FRAME) == 111 * MS);  /* the line was free: nothing is saved up */
    shape = shape_of(5 * MS, 0, 0, 0);
    CHECK(shape_admit(&shape, 7 * MS, 1 << 20) == 12 * MS);
}

static void test_queue(void)
{
    struct shape shape = shape_of(10 * MS, 0, 10000000, 0);
    uint64_t limit = shape_queue_limit(&shape.rules), taken = 0;

    CHECK(limit == 25000 + (128 << 10));
    while (shape_admit(&shape, 0, FRAME) > 0)
        taken += FRAME;
    CHECK(taken <= limit && taken + FRAME > limit);
    CHECK(shape_admit(&shape, 0, FRAME) == SHAPE_DROPPED);
    CHECK(shape_admit(&shape, 1 * MS, FRAME) > 0); /* one has left */
    CHECK(shape_admit(&shape, 1 * MS, FRAME) == SHAPE_DROPPED);
    shape = shape_of(0, 0, 10000, 0);
    CHECK(shape_admit(&shape, 0, 10 << 20) > 0); /* larger than the queue, but nothing waits */
}

static void test_loss(void)
{
    struct shape shape = shape_of(0, 0, 0, 0.1);
    int lost = 0;

    for (int i = 0; i < 100000; i++)
        lost += shape_admit(&shape, i, FRAME) == SHAPE_LOST;
    CHECK(lost > 9500 && lost < 10500); /* five standard deviations */
    shape = shape_of(0, 0, 0, 1);
    for (int i = 0; i < 1000; i++)
        CHECK(shape_admit(&shape, i, FRAME) == SHAPE_LOST);
}

static void test_jitter_keeps_order(void)
{
    struct shape shape = shape_of(10 * MS, 5 * MS, 0, 0);
    int64_t last = 0, least = INT64_MAX, most = 0;

    for (int64_t now = 0; now < 100000 * MS; now += 20 * MS) {
        int64_t due = shape_admit(&shape, now, FRAME);

        CHECK(due >= last);
        last = due;
        least = due - now < least ? due - now : least;
        most = due - now > most ? due - now : most;
    }
    CHECK(least >= 5 * MS && least < 6 * MS && most > 14 * MS && most <= 15 * MS);
    CHECK(shape_admit(&shape, 100000 * MS, FRAME) <= shape_admit(&shape, 100000 * MS, FRAME));
}

static void test_new_rules_forget_the_old_queue(void)
{
    struct shape shape = shape_of(50 * MS, 0, 10000, 0);
    struct shape_rules quick = {1 * MS, 0, 0, 0};

    CHECK(shape_admit(&shape, 0, FRAME) == 1050 * MS);
    CHECK(shape_set_rules(&shape, &quick, 10 * MS) == 11 * MS);
    CHECK(shape_admit(&shape, 10 * MS, FRAME) == 11 * MS);
}

static void test_segments(void)
{
    CHECK(shape_wire_bytes(1500, 54, 0) == 1500);
    CHECK(shape_wire_bytes(1500, 54, 1446) == 1500);
    CHECK(shape_wire_bytes(54 + 3000, 54, 1000) == 3 * 1054);
    CHECK(shape_wire_bytes(54 + 3001, 54, 1000) == 3 * 1054 + 55);
}

static void test_line(void)
{
    struct delay_queue line = {.limit = 30};
    uint8_t frame[10] = {0};

    for (uint8_t i = 0; i < 3; i++) {
        frame[0] = i;
        CHECK(delay_queue_push(&line, 100 * i, frame, sizeof frame) == 0);
    }
    CHECK(delay_queue_push(&line, 300, frame, 1) == -ENOSPC);
    delay_queue_hasten(&line, 150);
    for (uint8_t i = 0; i < 3; i++) {
        CHECK(line.head->bytes[0] == i && line.head->due_ns == (i == 2 ? 150 : 100 * i));
        delay_queue_pop(&line);
    }
    CHECK(!line.head && line.bytes == 0);
    CHECK(delay_queue_push(&line, 0, frame, sizeof frame) == 0);
    delay_queue_free(&line);
    CHECK(!line.head && line.bytes == 0);
}

static void test_commands(void)
{
    static const char *const wrong[] = {"", "set", "set 1 1 1 0", "set 0 0 0 0 0 0 0 0 0", "set 0 0 0 2 0 0 0 0",
                                        "set -1 0 0 0 0 0 0 0", "set 1 2 0 0 0 0 0 0", "set 0 0 0 nan 0 0 0 0",
                                        "set 0 0 0 0 0 0 0 0x", "showing", "set 61000000000 0 0 0 0 0 0 0"};
    struct shape_rules rules[2] = {{0}};

    CHECK(command_parse("set 10 5 1000 0.5 20 0 0 0", rules) == COMMAND_SET);
    CHECK(rules[0].latency_ns == 10 && rules[0].jitter_ns == 5 && rules[0].bandwidth == 1000 && rules[0].loss == 0.5);
    CHECK(rules[1].latency_ns == 20 && rules[1].bandwidth == 0);
    CHECK(command_parse("show", rules) == COMMAND_SHOW && command_parse("end", rules) == COMMAND_END);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK(command_parse(wrong[i], rules) == -EINVAL);
    CHECK(rules[0].latency_ns == 10);
}

int main(void)
{
    test_latency_and_bandwidth();
    test_queue();
    test_loss();
    test_jitter_keeps_order();
    test_new_rules_forget_the_old_queue();
    test_segments();
    test_line();
    test_commands();
    return 0;
}
