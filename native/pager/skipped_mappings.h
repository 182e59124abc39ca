/* The list of mappings that CRIU's dump need not look at, as `native/preload/criu.c` reads it. */
#ifndef WHERRY_PAGER_SKIPPED_MAPPINGS_H
#define WHERRY_PAGER_SKIPPED_MAPPINGS_H

#include <stddef.h>

#include "processes.h"

/*
 * Writes the file for frozen processes, after rounds_look: a line `hidden COUNT CRC`, with the CRC-32C of all that
 * follows in hex, then COUNT lines: `PID START END`, PID as we count, addresses in hex, and for objects that are no
 * process's own (objects.h) `shared DEVICE INODE` or `sysv DEVICE INODE` (stat's numbers in hex). It is there as a whole
 * or not at all. 0 or negative errno.
 */
int skipped_mappings_write(const char *path, struct processes *processes, size_t *count);

#endif
