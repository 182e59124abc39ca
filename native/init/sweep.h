/* Kills the processes that a job has left on the node. */
#ifndef WHERRY_INIT_SWEEP_H
#define WHERRY_INIT_SWEEP_H

#include "owner.h"

/*
 * SIGKILL to every process with WHERRY_JOB_ID=`job` in its environment that the owner may kill. Without another process,
 * as the node may have as many as it may. Returns their number; a process may have forked meanwhile, so it is 0 in the
 * end only. Negative errno when it cannot look.
 */
int sweep_job(const char *job, const struct owner *owner);

#endif
