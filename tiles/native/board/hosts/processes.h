/* A process's location record, as frames carry it between boards; and the order to end a process. */
#ifndef WHERRY_MANYCORE_BOARD_HOSTS_PROCESSES_H
#define WHERRY_MANYCORE_BOARD_HOSTS_PROCESSES_H

#include "network.h"

/* Handles FRAME_END. */
void processes_init(struct net *net);
void processes_describe(const struct net *net, uint32_t process, struct process_info *info);
/* Takes over the facts that do not depend on where the process is; every value is brought into its range. */
void processes_learn(struct location *location, const struct process_info *info);
/* Has the tile of a process end it, wherever that is; only the leader can ask another host. */
void processes_end(struct net *net, uint32_t process, int status, const char *why);

#endif
