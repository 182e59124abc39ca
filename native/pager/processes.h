/* The processes of a node, from the list that its control group has. */
#ifndef WHERRY_PAGER_PROCESSES_H
#define WHERRY_PAGER_PROCESSES_H

#include "objects.h"
#include "tracker.h"

/* All zero: none. */
struct processes {
    struct process *list;
    size_t count, room;
    struct objects objects; /* that they map */
};

/*
 * Reads a cgroup.procs anew: its processes are `listed`, the others have ended. A new process with the number of an
 * ended one takes its place, and the pages sent of that one are still in `sent`. 0 or negative errno; -EEXIST: two have
 * the same number, as they are in different PID namespaces.
 */
int processes_read(struct processes *processes, const char *path);
/* Forgets processes that are not listed. */
void processes_drop_ended(struct processes *processes);
void processes_free(struct processes *processes);

#endif
