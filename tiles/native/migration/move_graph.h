/*
 * The tasks of a move and their order: the 13 of the paper's Figure 2, and further tasks of a real move.
 *
 * Both tiles run this graph; which way it takes is decided by the exits. It is also the protocol of a move: the
 * simulation in tests/test_move_protocol.c runs the same edges over bodies of its own, on a network that loses and
 * repeats.
 */
#ifndef WHERRY_MANYCORE_MIGRATION_MOVE_GRAPH_H
#define WHERRY_MANYCORE_MIGRATION_MOVE_GRAPH_H

#include "task_graph.h"

enum move_task {
    /* Figure 2, in its order. */
    TASK_ARM,      /* mailbox aread: ready for a request */
    TASK_WAIT,     /* mailbox wait: until something of a move is for us */
    TASK_HANDLE,   /* handler: which side are we, and how does it move */
    TASK_GROUP,    /* state handler: the next group to transfer */
    TASK_LOOP,     /* the next piece of it */
    TASK_WRITE,    /* is this piece sent? */
    TASK_AWRITE,   /* puts it into the portal */
    TASK_SENT,     /* until it has been taken */
    TASK_READ,     /* is this piece expected? */
    TASK_ALLOW,    /* lets the sender send it */
    TASK_AREAD,    /* where it goes */
    TASK_RECEIVED, /* until it is there */
    TASK_FINISH,   /* nothing of the move is left on this side */
    /* Ours. */
    TASK_START,    /* a process that was started here, or that the location entry has given us */
    TASK_RESERVE,  /* maps the user region, touches it */
    TASK_SCAN,     /* source: which pages were written since the last time */
    TASK_ROUND,    /* destination: copies those pages while the process runs */
    TASK_FREEZE,   /* every core gives up its thread */
    TASK_SEAL,     /* checksum of the User Area; the process is at rest */
    TASK_COPY,     /* the User Area, at once */
    TASK_CHECK,    /* can it be continued here? */
    TASK_PAGES,    /* the pages, at once */
    TASK_COMMIT,   /* swaps the location entry */
    TASK_ADOPT,    /* runs the process */
    TASK_DISCARD,  /* destination: forgets its part of the process */
    TASK_AWAIT,    /* source: until the destination has committed, or will not */
    TASK_TAKE_BACK, /* source: swaps the location entry; when the destination was first, releases the process */
    MOVE_TASKS,
};

enum move_exit {
    EXIT_NEXT,
    EXIT_ELSE,     /* the other way of a question with two answers */
    EXIT_END,      /* of a loop */
    EXIT_FAILED,
    EXIT_ASKED,    /* the event that TASK_WAIT has found */
    EXIT_STARTED,
    EXIT_SCAN,
    EXIT_ROUND,
    EXIT_FREEZE,
    EXIT_LOST,
    EXIT_OVER,
};

extern const struct graph move_graph;

#endif
