/* System calls that a running process makes, as we want them. */
#ifndef WHERRY_PAGER_INJECT_H
#define WHERRY_PAGER_INJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A stopped thread that makes the calls. */
struct stopped;

/* Returns 0 or more, or negative errno with `why` in words; -EPERM: another thread of the process may do better. */
typedef int (*inject_act)(void *context, const struct stopped *thread, char *why, size_t size);

/*
 * Stops one thread of the process and calls `act`, in a process that shares our memory and descriptors; afterwards the
 * thread continues as if nothing had been. It is stopped for 0.1 to 0.3 ms; a process of which no thread can be stopped
 * is given up after half a second. Returns the result of `act`, or negative errno; then `why` has the step that failed,
 * in words.
 */
int inject(int pid, inject_act act, void *context, char *why, size_t size);

/* The thread makes a system call. 0 with its result, or negative errno: it was lost. */
int inject_call(const struct stopped *thread, long number, const uint64_t arguments[6], long *result);

/* Reads the memory of its process. */
bool inject_read(const struct stopped *thread, uint64_t address, void *bytes, size_t count);

#endif
