/* Carries the three streams between this process and a program on a node. */
#ifndef WHERRY_RSH_IO_FORWARDING_H
#define WHERRY_RSH_IO_FORWARDING_H

#include <stdbool.h>

#include "wherry/buffer.h"
#include "wherry/handshake.h"

enum { FORWARD_LOST = -1, FORWARD_REFUSED = -2 };

/*
 * Sends the bytes in `out` (R), then relays until the program ends. Returns its exit code (128 + signal),
 * FORWARD_LOST when the connection broke, or FORWARD_REFUSED with the node's words in `reason`.
 */
int forward_io(int socket, struct seals *seals, struct buffer *out, bool with_input, char *reason, size_t room);

#endif
