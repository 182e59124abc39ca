/*
 * Kernel objects that a move must preserve. Each case makes one, waits for the move, and checks it.
 *
 * A case runs in a process of its own: make() and check() return "" or the fault. Between the two the process does
 * nothing but sleep, so that the kernel or the move causes any change of the object in this time.
 *
 * An activity is a case that works while its node is moved: work() is one lap, in which it changes its data and
 * compares all of it, byte by byte, with the expected data; it returns "" or the fault.
 */
#ifndef OBJECTS_H
#define OBJECTS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

struct object {
    const char *name;
    const char *(*make)(void);
    const char *(*check)(void);
};

struct activity {
    const char *name;
    const char *(*make)(void);
    const char *(*work)(void);
};

extern const struct object timers[], files[], ipc[], sockets[], messages[], processes[], rare[], socket_options[], unseen[];
extern const struct activity mappings[], flows[], crowds[];

const char *wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
double now_on(clockid_t clock);
void sleep_ms(int ms);
/* As fork(); the child ends with its parent. */
pid_t fork_helper(void);

#define OK ""
/* Ends the case when the expression does not hold. */
#define NEED(x) do { if (!(x)) return wrong("%s (errno %s)", #x, strerror(errno)); } while (0)

#endif
