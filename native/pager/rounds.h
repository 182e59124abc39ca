/* The rounds of a move, and the pages sent in each. */
#ifndef WHERRY_PAGER_ROUNDS_H
#define WHERRY_PAGER_ROUNDS_H

#include "later.h"
#include "processes.h"
#include "sender.h"

/* Reads the list and tracks all processes. 0 or negative errno; then `why` names the process. */
int rounds_begin(struct processes *processes, const char *tasks, char *why, size_t size);
/*
 * Sends the dirty pages of running processes. 0 or negative errno. A process that cannot be
 * tracked now is left for the next round or the last pass.
 */
int rounds_send(struct processes *processes, const char *tasks, uint64_t number, struct sender_totals *totals);

/* Looks at frozen processes and their mappings. 0 or negative errno. */
int rounds_look(struct processes *processes, const char *tasks);
/*
 * Sends the remaining pages of frozen processes, after rounds_look; with `later` only which pages they are that have
 * contents, and notes them there. 0 or negative errno.
 */
int rounds_send_last(struct processes *processes, uint64_t number, struct later *later, struct sender_totals *totals);

/*
 * Bytes with contents other than zero: of tracked memory and objects; of all that is not yet sent, of which the part of
 * objects is estimated. After rounds_look.
 */
int rounds_measure_tracked(const struct processes *processes, uint64_t *bytes);
int rounds_measure_unsent(struct processes *processes, uint64_t *bytes);

#endif
