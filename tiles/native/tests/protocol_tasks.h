/* The bodies of the tasks of a move, over the messages of protocol.h. */
#ifndef WHERRY_TEST_PROTOCOL_TASKS_H
#define WHERRY_TEST_PROTOCOL_TASKS_H

#include "../migration/move_graph.h"

extern task_body *const protocol_tasks[MOVE_TASKS];

#endif
