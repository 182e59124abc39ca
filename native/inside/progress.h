/*
 * Progress of the MPI while a rank waits for the daemon. Open MPI accepts a peer's connection only when the rank calls it;
 * a connection that nobody accepts keeps the rank's node from being moved, and the rank waits for just that.
 */
#ifndef WHERRY_INSIDE_PROGRESS_H
#define WHERRY_INSIDE_PROGRESS_H

#include <stdbool.h>

/* Whether this thread may have the MPI make progress now, and the MPI needs it. */
bool progress_is_ours(void);

/* One turn of it. */
void progress_turn(void);

#endif
