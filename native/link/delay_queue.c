/* See delay_queue.h. */
#include "delay_queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int delay_queue_push(struct delay_queue *line, int64_t due_ns, const uint8_t *frame, size_t length)
{
    struct delayed_frame *made;

    if (line->bytes + length > line->limit)
        return -ENOSPC;
    made = malloc(sizeof(*made) + length);
    if (!made)
        return -ENOMEM;
    made->next = NULL;
    made->due_ns = due_ns;
    made->length = length;
    memcpy(made->bytes, frame, length);
    if (line->head)
        line->tail->next = made;
    else
        line->head = made;
    line->tail = made;
    line->bytes += length;
    return 0;
}

void delay_queue_pop(struct delay_queue *line)
{
    struct delayed_frame *gone = line->head;

    line->head = gone->next;
    line->bytes -= gone->length;
    free(gone);
}

void delay_queue_hasten(struct delay_queue *line, int64_t latest_ns)
{
    for (struct delayed_frame *frame = line->head; frame; frame = frame->next)
        if (frame->due_ns > latest_ns)
            frame->due_ns = latest_ns;
}

void delay_queue_free(struct delay_queue *line)
{
    while (line->head)
        delay_queue_pop(line);
}
