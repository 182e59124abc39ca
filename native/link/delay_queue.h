/*
 * The frames on their way through one direction of a link: a list in the order in which they come out.
 *
 *    head -> [due | length | frame] -> [due | length | frame] -> ... <- tail
 *            the next to come out                                 the last that came in
 *
 * Memory is that of the frames on their way, up to a limit: a long line of unbounded bandwidth would else take it all.
 */
#ifndef WHERRY_LINK_DELAY_QUEUE_H
#define WHERRY_LINK_DELAY_QUEUE_H

#include <stddef.h>
#include <stdint.h>

struct delayed_frame {
    struct delayed_frame *next;
    int64_t due_ns;
    size_t length;
    uint8_t bytes[];
};

struct delay_queue {
    struct delayed_frame *head, *tail;
    size_t bytes, limit;
};

/* Keeps a copy that comes out at due_ns, which is not before the last one's. 0, -ENOSPC at the limit, or -ENOMEM. */
int delay_queue_push(struct delay_queue *line, int64_t due_ns, const uint8_t *frame, size_t length);
/* Removes the head. */
void delay_queue_pop(struct delay_queue *line);
/* Whatever would come out after latest_ns comes out then. */
void delay_queue_hasten(struct delay_queue *line, int64_t latest_ns);
void delay_queue_free(struct delay_queue *line);

#endif
