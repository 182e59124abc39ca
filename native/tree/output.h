/* The source's end of the stream (wire.h). Threads may send side by side; frames of one stay in their order. */
#ifndef WHERRY_TREE_OUTPUT_H
#define WHERRY_TREE_OUTPUT_H

#include <pthread.h>
#include <stdint.h>

#include "wire.h"

enum { OUTPUT_ROOM = 1 << 16 };

struct output {
    int socket, error; /* of an earlier frame */
    pthread_mutex_t lock;
    uint64_t sequence, answers, bytes;
    size_t waiting; /* bytes of small frames that are not sent yet */
    uint8_t room[OUTPUT_ROOM];
};

void output_open(struct output *output, int socket);
/* 0 or negative errno, which every later call has, too. */
int output_put(struct output *output, char type, uint64_t number, uint64_t at, const void *payload, uint32_t length);
/*
 * Sends the waiting frames, and returns when the destination has answered the end of pass `number`. 0 or negative
 * errno.
 */
int output_await(struct output *output, uint64_t number);

#endif
