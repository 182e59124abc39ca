/*
 * Tasks: work in pieces that never wait, in an order that is data.
 *
 * A graph has tasks and edges. A task's body runs to its end and returns one of its exits; the edges that carry
 * this exit make their tasks ready. An edge is a *flow* (its task becomes ready each time) or a *dependency* (its task
 * becomes ready when every dependency that leads to it has come). A body that would have to wait returns EXIT_AGAIN and
 * is run again the next time. So one stack is enough for all, and nothing of a graph is on it between runs.
 *
 * Ready tasks run in the order in which they became ready. A graph that could have more ready tasks than TASK_MAX, or
 * an edge out of its bounds, is refused by tasks_start().
 */
#ifndef WHERRY_MANYCORE_MIGRATION_TASK_GRAPH_H
#define WHERRY_MANYCORE_MIGRATION_TASK_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TASK_MAX 32
#define EXIT_AGAIN (-1)

struct task {
    const char *name;
    const char *side; /* source, destination or both run it */
    int figure;       /* its number in the paper's Figure 2; 0: it is ours */
};

enum edge_kind { EDGE_FLOW, EDGE_DEPENDENCY };

struct edge {
    uint8_t from, exit, to, kind;
    const char *text; /* when it is taken, in a word or two */
};

struct graph {
    const char *name;
    const struct task *tasks;
    size_t task_count;
    const struct edge *edges;
    size_t edge_count;
};

typedef int task_body(void *context);

struct tasks {
    const struct graph *graph;
    task_body *const *bodies; /* one for each task of the graph */
    void *context;
    uint8_t ready[TASK_MAX], first, count; /* a ring; a task is in it at most once */
    uint32_t waiting;                      /* bit N: task N is in the ring */
    uint8_t pending[TASK_MAX];             /* dependencies that have not come since the task ran */
    void (*trace)(void *context, int task, int exit); /* for tests; may be NULL */
};

/* Returns false when the graph is not sound. */
bool tasks_start(struct tasks *tasks, const struct graph *graph, task_body *const *bodies, void *context, int first);
/* Runs ready tasks, and tasks that become ready by that, until every task that is left returned EXIT_AGAIN. */
void tasks_run(struct tasks *tasks);
/* Runs one ready task. Returns false when there is none, or when it returned EXIT_AGAIN. */
bool tasks_step(struct tasks *tasks);
void tasks_print(const struct graph *graph, FILE *to);

#endif
