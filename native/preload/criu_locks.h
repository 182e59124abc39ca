/* criu_locks: locks that a mapping alone keeps, which CRIU does not see; see criu.c, mapped-locks. */
#ifndef WHERRY_PRELOAD_CRIU_LOCKS_H
#define WHERRY_PRELOAD_CRIU_LOCKS_H

/* Reads the list of such locks in a directory of images; without one there are none. */
void learn_mapped_locks(int images);
/*
 * Takes those of a file that CRIU has opened at the restore, for its mapping. A failed one is found by a later check.
 */
void take_mapped_locks(const char *path, int file);

#endif
