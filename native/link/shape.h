/*
 * When a frame that enters one direction of a link comes out of it, and whether it does.
 *
 *    frame enters                                               frame leaves
 *        |            bandwidth: one after the other                 |
 *        +--> loss? --> queue ====[ 8 * bytes / bandwidth ]===> latency +- jitter
 *                         full? dropped
 *                         ^      ^                          ^
 *                        now     start = max(now, free)     free: the next frame may start
 *
 * Nothing is stored but the moment at which the line is free: the queue is the frames that have not started, so its
 * length in bytes is (free - now) * bandwidth. Frames never overtake each other, as on a fibre: jitter delays those
 * behind as well. Times are nanoseconds of a monotonic clock; bytes are those of Ethernet frames without preamble and
 * checksum.
 */
#ifndef WHERRY_LINK_SHAPE_H
#define WHERRY_LINK_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

struct shape_rules {
    int64_t latency_ns, jitter_ns; /* jitter: evenly spread over latency - jitter ... latency + jitter */
    uint64_t bandwidth;            /* bit/s; 0: as fast as the machine */
    double loss;                   /* share of frames, 0 ... 1 */
};

struct shape {
    struct shape_rules rules;
    int64_t free_ns, last_due_ns;
    uint64_t random; /* state of the generator, not 0 */
};

enum shape_fate {
    SHAPE_LOST = -1,    /* by the rule of loss */
    SHAPE_DROPPED = -2, /* the queue was full */
};

/* Takes new rules. Returns the latest moment at which frames on their way come out: the old queue is forgotten. */
int64_t shape_set_rules(struct shape *shape, const struct shape_rules *rules, int64_t now_ns);
/* The moment at which a frame that enters now comes out, or a negative fate. */
int64_t shape_admit(struct shape *shape, int64_t now_ns, uint64_t bytes);
/* Bytes that may wait for their turn: bandwidth times latency, 10 ms more, and room for two of the largest frames. */
uint64_t shape_queue_limit(const struct shape_rules *rules);
/*
 * Bytes on the wire of a frame of `length` bytes that the kernel has not yet cut into segments: each carries the
 * headers and at most `segment` bytes. A segment of 0 means that it is one frame already.
 */
uint64_t shape_wire_bytes(uint64_t length, uint64_t headers, uint64_t segment);

#endif
