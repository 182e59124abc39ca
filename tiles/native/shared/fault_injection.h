/*
 * Faults on demand, for tests: WHERRY_TILE_FAULT=SIDE:STEP makes the source or destination of a move fail at a step.
 * Steps that kill: reserved, scanned, round, frozen, piece, pages, copied, committed; "stop:SIDE:STEP" stops instead,
 * until SIGCONT. "destination:flip" flips a bit of the User Area that came. Of hosts, the board of the source dies:
 * "host:give" before it sends the frozen process, "host:given" after; or that of the destination: "host:state" with
 * the frozen process, "host:come" when that already runs there. "clock:other": no host has another's clock.
 * "tracking:mprotect" and "tracking:none" hide the machine's better ways. "step:MODE" moves a process that has set its
 * trap flag to the next tile after every instruction.
 */
#ifndef WHERRY_MANYCORE_SHARED_FAULT_INJECTION_H
#define WHERRY_MANYCORE_SHARED_FAULT_INJECTION_H

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline bool fault_is(const char *where)
{
    const char *asked = getenv("WHERRY_TILE_FAULT");

    return asked && strcmp(asked, where) == 0;
}

/* The number behind `what`, or -1. */
static inline int fault_number(const char *what)
{
    const char *asked = getenv("WHERRY_TILE_FAULT");

    return asked && strncmp(asked, what, strlen(what)) == 0 ? atoi(asked + strlen(what)) : -1;
}

static inline void fault_point(const char *where)
{
    const char *asked = getenv("WHERRY_TILE_FAULT");

    if (asked && strncmp(asked, "stop:", 5) == 0 && strcmp(asked + 5, where) == 0)
        raise(SIGSTOP); /* to this thread, which then goes no further */
    if (fault_is(where)) {
        kill(getpid(), SIGKILL);
        pause();
    }
}

#endif
