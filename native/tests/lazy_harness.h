/*
 * Common to the programs that test `wherry-pager receive`: a sender of frames (stream.h), the receiver as a child, and
 * CRIU's part, which hands over a userfaultfd (lazy.h).
 */
#ifndef WHERRY_TESTS_LAZY_HARNESS_H
#define WHERRY_TESTS_LAZY_HARNESS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "../pager/stream.h"

enum { HARNESS_STREAMS = 2 };

struct stream {
    int fd;
    uint32_t sent;
};

struct receiver {
    pid_t pid;
    FILE *output;
    int input;
    struct stream streams[HARNESS_STREAMS];
};

/* In the current directory: its socket, and cgroup.procs, which this process joins. `rate`: 0, or a limit for filling. */
void receiver_begin(struct receiver *receiver, char *program, const char *rate);
/* The next line it prints begins like this. */
void receiver_says(struct receiver *receiver, const char *begin, char *line, size_t size);

void send_frame(struct stream *stream, struct stream_frame frame, const void *payload);
/* Pages of this process. */
void send_data(struct stream *stream, const void *address, uint32_t count, const void *bytes);
void send_hole(struct stream *stream, const void *address, uint32_t count);
/* 'R' or 'L' on all connections, and its answer. */
void send_end(struct receiver *receiver, uint32_t type, uint64_t number);

/* With the features that CRIU asks for. */
int userfault_new(void);
void userfault_register(int userfault, const void *address, size_t size);
/* Connects, reports a zombie, and hands the descriptor over; the connection. */
int userfault_hand_over(int userfault);
void restore_finished(int connection);

#endif
