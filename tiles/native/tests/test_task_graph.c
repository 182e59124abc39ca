/* The engine of tasks: flows, dependencies, waiting, order, unsound graphs; and that the graph of a move is sound. */
#include "../migration/task_graph.h"

#include <string.h>

#include "../migration/move_graph.h"
#include "check.h"

static char said[64];
static int left;

static int say(char what, int exit)
{
    said[strlen(said)] = what;
    return exit;
}

static int a(void *context)
{
    (void)context;
    return say('a', 0);
}

static int b(void *context)
{
    (void)context;
    return say('b', 0);
}

static int c(void *context)
{
    (void)context;
    return say('c', left-- > 0 ? EXIT_AGAIN : 1);
}

static int d(void *context)
{
    (void)context;
    return say('d', 0);
}

static const struct task named[] = {{"a", "both", 0}, {"b", "both", 0}, {"c", "both", 0}, {"d", "both", 0}};
static task_body *const bodies[] = {a, b, c, d};

static void run(const struct graph *graph, int first, const char *expected)
{
    struct tasks tasks;

    memset(said, 0, sizeof(said));
    CHECK(tasks_start(&tasks, graph, bodies, NULL, first));
    for (int i = 0; i < 3; i++) {
        tasks_run(&tasks);
        strcat(said, ".");
    }
    CHECK(strcmp(said, expected) == 0);
}

/* a leads to b and c; d needs both. c waits two times, and nobody waits for it but d. */
static void test_join(void)
{
    static const struct edge edges[] = {
        {0, 0, 1, EDGE_FLOW, ""}, {0, 0, 2, EDGE_FLOW, ""}, {1, 0, 3, EDGE_DEPENDENCY, ""},
        {2, 1, 3, EDGE_DEPENDENCY, ""},
    };
    const struct graph graph = {"join", named, 4, edges, 4};

    left = 2;
    run(&graph, 0, "abc.c.cd.");
}

/* The exit chooses the way: b is not on c's. */
static void test_choice(void)
{
    static const struct edge edges[] = {{2, 0, 1, EDGE_FLOW, ""}, {2, 1, 3, EDGE_FLOW, ""}};
    const struct graph graph = {"choice", named, 4, edges, 2};

    left = 0;
    run(&graph, 2, "cd...");
}

static void test_unsound(void)
{
    static const struct edge wild[] = {{0, 0, 4, EDGE_FLOW, ""}};
    const struct graph beyond = {"wild", named, 4, wild, 1}, none = {"none", named, 4, wild, 0};
    struct tasks tasks;

    CHECK(!tasks_start(&tasks, &beyond, bodies, NULL, 0));
    CHECK(!tasks_start(&tasks, &none, bodies, NULL, 4) && !tasks_start(&tasks, &none, bodies, NULL, -1));
}

/* Every task is named and reached, and leads somewhere; no exit of a task leads two ways. */
static void test_move_graph(void)
{
    uint64_t reached = 1, leads = 0;

    for (size_t i = 0; i < move_graph.edge_count; i++) {
        const struct edge *edge = &move_graph.edges[i];

        reached |= 1ull << edge->to;
        leads |= 1ull << edge->from;
        for (size_t j = 0; j < i; j++)
            CHECK(edge->from != move_graph.edges[j].from || edge->exit != move_graph.edges[j].exit);
    }
    CHECK(move_graph.task_count == MOVE_TASKS);
    for (size_t task = 0; task < move_graph.task_count; task++)
        CHECK(move_graph.tasks[task].name && reached >> task & 1 && leads >> task & 1);
}

int main(void)
{
    test_join();
    test_choice();
    test_unsound();
    test_move_graph();
    return 0;
}
