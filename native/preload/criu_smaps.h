/* criu_smaps: the mappings of a process for CRIU's dump (criu.c, WHERRY_CRIU_SMAPS). */
#ifndef WHERRY_CRIU_SMAPS_H
#define WHERRY_CRIU_SMAPS_H

/*
 * The text that CRIU is to read as smaps of the process whose /proc/PID `directory` is; `prefix` of the copies that
 * were made before the freeze may be NULL. -1: the kernel's own.
 */
int given_smaps(int directory, const char *prefix);

#endif
