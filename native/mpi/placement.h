/*
 * placement: asks the daemon on which nodes spawned processes start (docs/design/0025-from-inside.md).
 */
#ifndef WHERRY_MPI_PLACEMENT_H
#define WHERRY_MPI_PLACEMENT_H

#include "hidden.h"

#include <stdbool.h>

/* Bytes, with the end: the room for a value of an info object in all MPIs, and for the longest one. */
enum { PLACEMENT_ROOM = 256, PLACEMENT_NAMES = 1024 };

/* Whether `wherry run --place-spawned` started this program. */
bool placement_is_wanted(void) HIDDEN;

/*
 * Nodes for so many processes as the MPI's key `host` names them, among the nodes that `host` allows (empty: all).
 * False after a second at most, with the reason and the consequence on stderr.
 */
bool placement_ask(long processes, const char *host, char hosts[PLACEMENT_ROOM])
    HIDDEN;

/* Tells on stderr, which is the job's output, what the user should know. */
void placement_say(const char *what, const char *why) HIDDEN;

#endif
