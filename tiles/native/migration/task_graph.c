/* See task_graph.h. No lock in here: one at a time runs the tasks of a graph. */
#include "task_graph.h"

#include <string.h>

static uint8_t count_dependencies(const struct graph *graph, size_t task)
{
    uint8_t count = 0;

    for (size_t i = 0; i < graph->edge_count; i++)
        count += graph->edges[i].to == task && graph->edges[i].kind == EDGE_DEPENDENCY;
    return count;
}

static void make_ready(struct tasks *tasks, uint8_t task)
{
    if (tasks->waiting >> task & 1)
        return;
    tasks->ready[(tasks->first + tasks->count++) % TASK_MAX] = task;
    tasks->waiting |= 1u << task;
}

bool tasks_start(struct tasks *tasks, const struct graph *graph, task_body *const *bodies, void *context, int first)
{
    memset(tasks, 0, sizeof(*tasks));
    if (graph->task_count > TASK_MAX || first < 0 || (size_t)first >= graph->task_count)
        return false;
    for (size_t i = 0; i < graph->edge_count; i++)
        if (graph->edges[i].from >= graph->task_count || graph->edges[i].to >= graph->task_count)
            return false;
    tasks->graph = graph;
    tasks->bodies = bodies;
    tasks->context = context;
    for (size_t task = 0; task < graph->task_count; task++)
        tasks->pending[task] = count_dependencies(graph, task);
    make_ready(tasks, (uint8_t)first);
    return true;
}

static void follow(struct tasks *tasks, uint8_t task, int exit)
{
    for (size_t i = 0; i < tasks->graph->edge_count; i++) {
        const struct edge *edge = &tasks->graph->edges[i];

        if (edge->from != task || edge->exit != exit)
            continue;
        if (edge->kind == EDGE_FLOW) {
            make_ready(tasks, edge->to);
        } else if (tasks->pending[edge->to] && --tasks->pending[edge->to] == 0) {
            tasks->pending[edge->to] = count_dependencies(tasks->graph, edge->to);
            make_ready(tasks, edge->to);
        }
    }
}

bool tasks_step(struct tasks *tasks)
{
    uint8_t task;
    int exit;

    if (!tasks->count)
        return false;
    task = tasks->ready[tasks->first];
    tasks->first = (uint8_t)((tasks->first + 1) % TASK_MAX);
    tasks->count--;
    tasks->waiting &= ~(1u << task);
    exit = tasks->bodies[task](tasks->context);
    if (exit == EXIT_AGAIN) {
        make_ready(tasks, task);
        return false;
    }
    if (tasks->trace)
        tasks->trace(tasks->context, task, exit);
    follow(tasks, task, exit);
    return true;
}

void tasks_run(struct tasks *tasks)
{
    /* As many in a row that wait as there are ready ones: all of them wait. */
    for (int idle = 0; idle < tasks->count; )
        idle = tasks_step(tasks) ? 0 : idle + 1;
}

void tasks_print(const struct graph *graph, FILE *to)
{
    fprintf(to, "digraph %s {\n  node [shape=box];\n", graph->name);
    for (size_t i = 0; i < graph->task_count; i++) {
        const struct task *task = &graph->tasks[i];

        fprintf(to, "  t%zu [label=\"", i);
        if (task->figure)
            fprintf(to, "%d ", task->figure);
        fprintf(to, "%s\\n%s\"%s%s];\n", task->name, task->side, strcmp(task->side, "both") ? " style=dashed" : "",
                task->figure ? "" : " color=blue");
    }
    for (size_t i = 0; i < graph->edge_count; i++)
        fprintf(to, "  t%u -> t%u [label=\"%s\"%s];\n", graph->edges[i].from, graph->edges[i].to, graph->edges[i].text,
                graph->edges[i].kind == EDGE_DEPENDENCY ? " arrowhead=odiamond" : "");
    fprintf(to, "}\n");
}
