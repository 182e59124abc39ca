/* Small things that every program of a node needs: descriptors, identity, the words for how a process ended. */
#ifndef WHERRY_PROCESS_H
#define WHERRY_PROCESS_H

#include <stdint.h>
#include <stddef.h>
#include <sys/types.h>

/* Closes every descriptor >= 3 and makes sure that 0, 1 and 2 are open (on /dev/null). Returns 0 or negative errno. */
int process_close_inherited(void);
/* Points 0, 1 and 2 to /dev/null. Returns 0 or negative errno. */
int process_detach_streams(void);
/* Default action for every signal, none blocked: as a fresh program expects. */
void process_reset_signals(void);
/* Becomes that user for good. Returns 0 or negative errno. */
int process_become(uid_t uid, gid_t gid, const gid_t *groups, size_t group_count);
/* "exit N" or "signal N" of a wait status. */
void process_describe_status(int status, char *text, size_t room);
/* Writes all bytes to a blocking descriptor. Returns 0 or negative errno. */
int process_write_all(int fd, const void *bytes, size_t count);
/* Milliseconds of CLOCK_MONOTONIC. */
int64_t process_now_ms(void);

#endif
