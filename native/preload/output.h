/* Common parts of the two ways of waiting in output.c. */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <time.h>

extern bool is_launcher; /* whether this is a process of the launcher's: mpirun, or the daemon of a node */
extern bool is_daemon;

int kernel_poll(struct pollfd *set, nfds_t count, struct timespec *left); /* `left` becomes the rest of it */

/* Once the launcher ends the job. */
bool is_ending(void);

/* In the daemon of a node: whether `fd` brings the output of ranks, or of daemons that are connected to this one. */
bool brings_output(int fd);

/* The same of a descriptor that need not be readable: false for a pipe that was not looked at. */
bool is_known_to_bring_output(int fd);

/* In the daemon of a node: whether it is a connection by which output is passed on. */
bool takes_output(int fd);

/* In the launcher: whether it is a daemon's connection, or the standard input. */
bool feeds_launcher(int fd);
