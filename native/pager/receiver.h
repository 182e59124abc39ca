/*
 * The frames of all connections (stream.h) into the cache: a thread for each connection.
 *
 *   connection 0 --> thread --\
 *   connection 1 --> thread ----> cache        the thread that reads the last end of a round sends A on connection 0
 *                             `-> notify       an eventfd: there is news (receiver_news)
 *
 * Pages that are neither sealed nor compressed are received where they stay; others by way of a buffer, and a bad frame
 * never reaches the cache. After P the threads continue with the later pages (fetch.h), until a connection ends: a
 * failure while any page is awaited.
 */
#ifndef WHERRY_PAGER_RECEIVER_H
#define WHERRY_PAGER_RECEIVER_H

#include <pthread.h>
#include <stdint.h>

#include "cache.h"
#include "compress.h"
#include "fetch.h"
#include "frame_seal.h"

enum {
    RECEIVE_BROKEN = 3, /* exit codes of `wherry-pager receive`: a connection ended before the last pass did */
    RECEIVE_REFUSED = 4, /* a frame breaks a rule */
    RECEIVER_BUFFER = 32 << 10,
};

struct connection {
    struct receiver *receiver;
    int fd;
    pthread_t thread;
    uint32_t received;  /* frames */
    uint64_t end;       /* the number of the last R or L */
    uint16_t round;     /* 1, 2, … */
    int last;
    struct frame_seal *seal;    /* NULL: nothing is sealed */
    struct unpacker *unpacker;  /* NULL until something is compressed */
    uint8_t *payload, *unpacked; /* the same; as large as payloads are at most */
    size_t head, filled; /* of the buffer: frames that came together */
    uint8_t buffer[RECEIVER_BUFFER];
};

struct receiver {
    struct cache *cache;
    struct fetch *fetch;
    int fetching;           /* P has come on all connections */
    int notify;
    unsigned count;
    pthread_mutex_t lock;
    uint64_t rounds, last;  /* numbers of the complete ones; 0: none yet */
    uint16_t passes;
    uint32_t sent;          /* frames, on the first connection */
    struct frame_seal *seal; /* of them */
    int failure;            /* an exit code */
    char reason[160];
    struct connection connections[STREAM_CONNECTIONS_MAX];
};

struct receiver_news {
    uint64_t rounds, last;
    int fetching;
    uint16_t passes;
    int failure;
    char reason[160];
};

/* Takes the sockets over. `key` is NULL for streams that are not sealed. 0 or negative errno. */
int receiver_start(struct receiver *receiver, struct cache *cache, struct fetch *fetch, const int *sockets,
                   unsigned count, int notify, const uint8_t *key);
void receiver_news(struct receiver *receiver, struct receiver_news *news);
/* After the last pass or a failure. Ends the connections that pages still could come on. */
void receiver_join(struct receiver *receiver);

#endif
