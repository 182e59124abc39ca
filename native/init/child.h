/* The programs below the init: start one, signal one with its whole session, count them. */
#ifndef WHERRY_INIT_CHILD_H
#define WHERRY_INIT_CHILD_H

#include "wherry/wire.h"

/* All descriptors are the init's ends, non-blocking, -1 when closed. */
struct child {
    pid_t pid;      /* 0: none, or reaped */
    int verdict;    /* end of file: exec'ed; text: why not */
    int input;      /* to its standard input */
    int output[2];  /* from its standard output and error */
};

#define CHILD_NONE ((struct child){.verdict = -1, .input = -1, .output = {-1, -1}})

/* Forks and begins to start the program; how it went arrives on child->verdict. Returns 0 or negative errno. */
int child_start(const struct wire_run *run, struct child *child);
/* Signals the process group and every other process of the session that the child leads. */
void child_signal_session(pid_t leader, int signal_number);
/* Live processes whose parent is the init: started ones and adopted ones. */
int child_count(void);
void child_close(int *fd);

#endif
