/* Carries the three streams between this process and a program on a node. */
#ifndef WHERRY_RSH_RELAY_H
#define WHERRY_RSH_RELAY_H

#include <stdbool.h>

#include "wherry/buffer.h"
#include "wherry/prove.h"

enum { RELAY_LOST = -1, RELAY_REFUSED = -2 };

/*
 * Sends what is queued in `out` (R), then relays until the program ends. Returns its exit code (128 + signal),
 * RELAY_LOST when the connection broke, or RELAY_REFUSED with the node's words in `reason`.
 */
int relay_run(int socket, struct seals *seals, struct buffer *out, bool with_input, char *reason, size_t room);

#endif
