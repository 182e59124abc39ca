/*
 * The standard input of a job, passed on from a named pipe in its directory:
 *
 *   input    frames, each written at once and at most PIPE_BUF bytes long, so that none is torn or mixed with another:
 *
 *            0                  8                  10
 *            +------------------+------------------+-- - -+
 *            | offset u64 (BE)  | length u16 (BE)  | bytes |     length 0: the end of the input
 *            +------------------+------------------+-- - -+
 *
 * Invariant: every byte is passed on once, in order. A writer that cannot be sure that its last frame arrived (another
 * one, after a daemon was killed) writes it again; bytes that have arrived already are left out.
 */
#ifndef WHERRY_LAUNCH_JOB_INPUT_H
#define WHERRY_LAUNCH_JOB_INPUT_H

#include <limits.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>

struct job_input {
    int fifo;         /* both ends, so that it never ends by itself; -1: there is no input */
    int program;      /* our end of the program's standard input; -1: it has ended, what comes is dropped */
    uint64_t taken;   /* bytes taken from the pipe */
    size_t have, sent; /* bytes of the frame in hand, and those of them that were passed on */
    uint8_t bytes[PIPE_BUF];
};

enum { INPUT_HEADER = 10 };

/* Makes `input` in the directory and a pipe, whose end for the program is *end. Returns 0 or negative errno. */
int job_input_open(struct job_input *input, int directory, int *end);
/* The event to wait for before job_input_pass. */
struct pollfd job_input_awaited(const struct job_input *input);
/* Passes on all bytes that need no waiting. */
void job_input_pass(struct job_input *input);

#endif
