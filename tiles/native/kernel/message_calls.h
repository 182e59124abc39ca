/* The kernel calls about mailboxes, portals and signals, and the operations that run beside the program. */
#ifndef WHERRY_MANYCORE_KERNEL_MESSAGE_CALLS_H
#define WHERRY_MANYCORE_KERNEL_MESSAGE_CALLS_H

#include "kernel_call.h"

call_execute_one call_mail_send, call_mail_receive, call_sync_signal, call_sync_wait, call_allow, call_start,
    call_finish, call_wait;
/* Advances the process's operations as far as they go. The tile's lock is held, the process is not frozen. */
void operations_advance(struct tile *tile);

#endif
