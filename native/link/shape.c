/* See shape.h. */
#include "shape.h"

enum {
    NS_PER_S = 1000000000,
    QUEUE_NS = 10000000,        /* so that a sender that stands for a few milliseconds leaves the line no gap */
    QUEUE_BYTES = 2 * 64 << 10, /* the kernel hands over up to 64 KiB at once */
};

/* xorshift64* (Vigna 2016), as an even number of 0 <= x < 1. */
static double random_share(struct shape *shape)
{
    uint64_t x = shape->random;

    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    shape->random = x;
    return (double)((x * UINT64_C(2685821657736338717)) >> 11) / (double)(UINT64_C(1) << 53);
}

static int64_t time_of(uint64_t bytes, uint64_t bandwidth)
{
    return (int64_t)((double)bytes * 8 * NS_PER_S / (double)bandwidth);
}

int64_t shape_set_rules(struct shape *shape, const struct shape_rules *rules, int64_t now_ns)
{
    int64_t latest = now_ns + rules->latency_ns + rules->jitter_ns;

    shape->rules = *rules;
    shape->free_ns = 0;
    if (shape->last_due_ns > latest)
        shape->last_due_ns = latest;
    return latest;
}

uint64_t shape_queue_limit(const struct shape_rules *rules)
{
    double seconds = (double)(rules->latency_ns + QUEUE_NS) / NS_PER_S;

    return (uint64_t)(seconds * (double)rules->bandwidth / 8) + QUEUE_BYTES;
}

int64_t shape_admit(struct shape *shape, int64_t now_ns, uint64_t bytes)
{
    const struct shape_rules *rules = &shape->rules;
    uint64_t queue = shape_queue_limit(rules);
    int64_t due = now_ns;

    if (rules->loss > 0 && random_share(shape) < rules->loss)
        return SHAPE_LOST;
    if (rules->bandwidth) {
        int64_t start = shape->free_ns > now_ns ? shape->free_ns : now_ns;

        if (start > now_ns && start - now_ns + time_of(bytes, rules->bandwidth) > time_of(queue, rules->bandwidth))
            return SHAPE_DROPPED;
        shape->free_ns = start + time_of(bytes, rules->bandwidth);
        due = shape->free_ns;
    }
    due += rules->latency_ns;
    if (rules->jitter_ns)
        due += (int64_t)((2 * random_share(shape) - 1) * (double)rules->jitter_ns);
    if (due < shape->last_due_ns)
        due = shape->last_due_ns;
    shape->last_due_ns = due;
    return due;
}

uint64_t shape_wire_bytes(uint64_t length, uint64_t headers, uint64_t segment)
{
    if (segment == 0 || length <= headers + segment)
        return length;
    return length + ((length - headers + segment - 1) / segment - 1) * headers;
}
