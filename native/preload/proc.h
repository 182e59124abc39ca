/* proc: reads facts of files and descriptors, for CRIU's library (criu.c). */
#ifndef WHERRY_PRELOAD_PROC_H
#define WHERRY_PRELOAD_PROC_H

#include <stdbool.h>

#define EXPORTED __attribute__((visibility("default"))) /* of a library whose symbols are hidden */

/* All of a file, ended by a zero byte; NULL when it cannot be read. */
char *contents(int directory, const char *path);
/* Whose /proc/PID, with this behind it, a descriptor is of; 0: nobody's. */
int process_of(int descriptor, const char *behind);
/* Whether CRIU does this now: WHERRY_CRIU_ACT. */
bool does(const char *act);

#endif
