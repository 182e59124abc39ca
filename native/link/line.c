/* See line.h. */
#include "line.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int line_push(struct line *line, int64_t due_ns, const uint8_t *frame, size_t length)
{
    struct line_frame *made;

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

void line_pop(struct line *line)
{
    struct line_frame *gone = line->head;

    line->head = gone->next;
    line->bytes -= gone->length;
    free(gone);
}

void line_hasten(struct line *line, int64_t latest_ns)
{
    for (struct line_frame *frame = line->head; frame; frame = frame->next)
        if (frame->due_ns > latest_ns)
            frame->due_ns = latest_ns;
}

void line_free(struct line *line)
{
    while (line->head)
        line_pop(line);
}
