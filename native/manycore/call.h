/* A kernel call while it is executed: what calls.c and messages.c share. The tile's lock is held. */
#ifndef WHERRY_MANYCORE_CALL_H
#define WHERRY_MANYCORE_CALL_H

#include "tile.h"

#define CALL_PARKED INT64_MIN     /* the thread waits; the call will be executed again */
#define CALL_GONE (INT64_MIN + 1) /* the thread has ended */

struct call {
    struct tile *tile;
    struct thread *thread;
    int slot, core;
    uint64_t words[5];
};

typedef int64_t call_execute_one(const struct call *call);

/* The thread waits for this, and its call is executed again when there is reason to. */
int64_t call_park(const struct call *call, enum wait_kind kind, uint32_t object);
/* The program's memory as the kernel sees it, or NULL when the program does not have that. */
const void *call_readable(const struct call *call, uint64_t address, uint64_t size);
void *call_writable(const struct call *call, uint64_t address, uint64_t size);

/* messages.c */
call_execute_one call_mail_send, call_mail_receive, call_sync_signal, call_sync_wait, call_allow, call_start,
    call_finish, call_wait;

#endif
