/* interrupted_call: which system call of a stopped thread is to be made again, so that its program does not notice. */
#ifndef WHERRY_INTERRUPTED_CALL_H
#define WHERRY_INTERRUPTED_CALL_H

#include <stdbool.h>
#include <sys/user.h>

/* Results inside the kernel, which only a tracer sees (linux/errno.h). */
enum { WHERRY_ERESTARTNOINTR = 513, WHERRY_ERESTART_RESTARTBLOCK = 516 };

/*
 * The number of the call that the thread, stopped on its way out of the kernel, is to make again with the whole of its
 * timeout: a call that a stop ends with EINTR and that has done nothing, or a call that only the kernel can continue,
 * and not in a restored process. -1: none, or a signal has ended the call, or it returned the time left and its caller
 * looks for that.
 */
long interrupted_call(int tid, const struct user_regs_struct *registers);

/*
 * A thread that continues from one stop and is caught by the next before it is back in its program is about to call
 * restart_syscall, which only this kernel can do for it. True when it was: then its registers are those of the first stop.
 */
bool undo_restart(int tid, struct user_regs_struct *registers);

#endif
