/* The node's control group, by the path of its cgroup.procs in the freezer's hierarchy. Only system calls are made. */
#ifndef WHERRY_PAGER_NODE_GROUP_H
#define WHERRY_PAGER_NODE_GROUP_H

#include <stdbool.h>

/*
 * Sends SIGKILL to its processes, never to another process that has got the number of one meanwhile. How many there
 * were; 0 or less: none, or the group is gone. To be called until then: a frozen process dies when it is thawed (cgroup
 * v1).
 */
int node_group_kill(const char *tasks);
/* Whether it has processes and they are frozen. */
bool node_group_stands(const char *tasks);

#endif
