/*
 * The process that keeps restored processes from running with holes in their memory if `receive` is killed.
 *
 *   receive --clone(CLONE_FILES)--> guard      one table of descriptors: all that `receive` has open, the guard has too
 *      killed                         pidfd -> kills all in the node's cgroup.procs, and only then lets them go
 *
 * As long as a userfaultfd is open somewhere, a thread that lacks a page waits; when the last copy is closed, the
 * kernel hands out zeros. The table is shared rather than descriptors sent, so the guard has a child's descriptor in
 * the very moment in which the event of the fork is read.
 */
#ifndef WHERRY_PAGER_GUARD_H
#define WHERRY_PAGER_GUARD_H

struct guard {
    const char *tasks;
    struct guard_shared *shared; /* memory of both */
    int receiver;                /* pidfds */
    int guard;
    int stop;                    /* an eventfd */
    int pid;
};

/* 0 or negative errno. guard->guard can be polled: the guard has ended, and guard_again() makes another one. */
int guard_start(struct guard *guard, const char *tasks);
int guard_again(struct guard *guard);
/* Before the first descriptor comes: from now on the node dies with this process. */
void guard_arm(struct guard *guard);
/* Nothing is missing any more, or never will be. */
void guard_disarm(struct guard *guard);
/* When it is not armed: waits until it has ended. */
void guard_end(struct guard *guard);

/* Has the kernel kill other processes first when memory is short. */
void oom_protect(void);
/* Has it kill us first, if that can be undone. */
void oom_volunteer(void);

#endif
