/*
 * The control commands of a link: one line, words and values. Nothing else is accepted; an invalid line changes
 * nothing.
 */
#ifndef WHERRY_LINK_COMMAND_H
#define WHERRY_LINK_COMMAND_H

#include "shape.h"

enum command_verb { COMMAND_SET, COMMAND_SHOW, COMMAND_END };

/*
 * Reads a line:
 *   set LATENCY JITTER BANDWIDTH LOSS LATENCY JITTER BANDWIDTH LOSS    ns, ns, bit/s, 0 ... 1; there and back
 *   show | end
 * Returns the verb, or -EINVAL.
 */
int command_parse(const char *line, struct shape_rules rules[2]);

#endif
