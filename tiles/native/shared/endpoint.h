/*
 * The part of a tile process's communication outside of it: it belongs to the process, not to a tile, and is found by
 * process number in the memory that the tiles share. So a move on one host carries none of it, and the tile that runs
 * the process continues it.
 *
 *   mailbox   32 ports, each a queue of 16 messages of at most 128 bytes. A sender waits for room.
 *   portal    8 ports for bulk. The receiver allows one sender (and a ticket that both know) so many bytes; the sender
 *             fills a queue of 8 pieces of 4 KiB, the receiver empties it. Without this grant nothing is sent.
 *   sync      16 counters for each other process: a signal adds one, a wait takes one of each process that it names.
 *             One to all: one signals many, each waits for one. All to one: each signals one, who waits for many.
 *   operation 32 sends and receives that were started and run beside the program: data, so they move too.
 *
 * A message or piece exists from the store of `count` on and is gone from the store of `first` and `count` on, under
 * the lock. `lock` is robust: a tile may be killed while it holds it, and every change is complete in one store or
 * concerns only the process that died with the tile.
 */
#ifndef WHERRY_MANYCORE_SHARED_ENDPOINT_H
#define WHERRY_MANYCORE_SHARED_ENDPOINT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "user_area.h"

#define MAIL_DEPTH 16 /* messages that a port holds */
#define PIECE_DEPTH 8 /* pieces that a portal holds */

struct shared_memory;

struct mail {
    uint32_t from, size;
    int64_t due;   /* when it is there (mesh.h); 0: at once */
    uint8_t bytes[MAIL_SIZE];
};

struct port {
    uint32_t first, count;
    struct mail mails[MAIL_DEPTH];
};

struct portal {
    uint32_t from, ticket; /* the sender that has the grant */
    uint64_t allowed;      /* bytes that the sender may still put */
    uint64_t expected;     /* bytes that the receiver has still to take; 0: nobody is allowed */
    bool fresh;            /* a new grant: the board sends it to another host, if the sender is there */
    uint32_t first, count;
    uint32_t sizes[PIECE_DEPTH];
    int64_t due[PIECE_DEPTH];
    uint8_t pieces[PIECE_DEPTH][PAGE_SIZE];
};

/* Touched only by the tile that runs the process, under the tile's lock. */
struct operation {
    uint8_t kind;    /* START_...; */
    uint8_t state;   /* enum operation_state */
    uint16_t port;
    uint32_t process, ticket;
    uint32_t turn;   /* operations of one stream are done in the order of their starts */
    uint32_t offset; /* of the bytes in the user region */
    uint64_t size, done;
    int64_t result;  /* size, or negative errno */
};

enum operation_state { OPERATION_FREE, OPERATION_PENDING, OPERATION_DONE };

struct endpoint {
    pthread_mutex_t lock;
    uint32_t waiting; /* bit N: process N waits for room or a grant here, and is rung when something changes */
    /* bit N: messages of process N are on their way here from another host, and must not be overtaken */
    uint32_t behind;
    struct port ports[PORT_MAX];
    struct portal portals[PORTAL_MAX];
    uint32_t signals[SYNC_MAX][PROCESS_MAX];
    int64_t signal_due[SYNC_MAX][PROCESS_MAX]; /* of the last signal; those before it are there no sooner */
    int64_t due;      /* the first of the messages under way that were asked for; 0: none */
    uint32_t turn;    /* of the operation that is started next */
    struct operation operations[OPERATION_MAX];
};

void endpoint_lock(struct endpoint *endpoint);
void endpoint_unlock(struct endpoint *endpoint);
/* Empties everything, for a new process. */
void endpoint_clear(struct shared_memory *shared, uint32_t process);
/* Lock held. Whether a message due then is there; if not, it is noted for endpoint_next_due(). */
bool endpoint_has_come(struct endpoint *endpoint, int64_t due);
/* When the process's tile has to look again for messages under way; 0: not. */
int64_t endpoint_next_due(struct endpoint *endpoint);
/* It looks now: a due time that has passed is forgotten. */
void endpoint_look_again(struct endpoint *endpoint);

/* Puts a message into a port. Returns 0, -EAGAIN (full; `from` is rung when there is room), -ESRCH (no process). */
int mailbox_put(struct shared_memory *shared, uint32_t process, uint32_t port, uint32_t from, const void *bytes,
                uint32_t size);
/* The same for the board, which brings messages that others must not overtake. */
int mailbox_hand_over(struct shared_memory *shared, uint32_t process, uint32_t port, uint32_t from, const void *bytes,
                      uint32_t size);
/* Takes the first message of a port, if it is there. Returns false when there is none. */
bool mailbox_receive(struct shared_memory *shared, uint32_t process, uint32_t port, struct mail *mail);
/* The same for the board, wherever the message is in the mesh. */
bool mailbox_take(struct shared_memory *shared, uint32_t process, uint32_t port, struct mail *mail);

/* Lets `from` send `size` bytes to a portal. Returns 0, or -EBUSY: bytes allowed before have not been received. */
int portal_allow(struct shared_memory *shared, uint32_t process, uint32_t port, uint32_t from, uint32_t ticket,
                 uint64_t size);
/*
 * Puts as many bytes as are allowed and find room. Returns bytes put, at least one; -EAGAIN (no grant, no room: rung
 * when there is), -ESRCH (no process).
 */
int64_t portal_put(struct shared_memory *shared, uint32_t process, uint32_t port, uint32_t from, uint32_t ticket,
                   const uint8_t *bytes, uint64_t size);
/* Takes the bytes that are there, at most `size`. Returns bytes taken; 0: none yet; -ESRCH: the sender has ended. */
int64_t portal_take(struct shared_memory *shared, uint32_t process, uint32_t port, uint8_t *bytes, uint64_t size);
/* Takes the first piece, of at most a page, wherever it is in the mesh. Returns its size; 0: there is none. */
uint32_t portal_take_piece(struct shared_memory *shared, uint32_t process, uint32_t port, uint8_t *bytes);
/* Whether a sender has been allowed and not all of it received. */
bool portal_is_open(struct shared_memory *shared, uint32_t process, uint32_t port);

/* Signals each process of the set. Returns 0, or -ESRCH: one is not there, and nobody was signalled. */
int sync_signal(struct shared_memory *shared, uint32_t from, uint32_t sync, uint32_t processes);
/* Takes one signal of each process of the set, if all are there. Returns 1; 0: not yet; -ESRCH: one has ended. */
int sync_take(struct shared_memory *shared, uint32_t process, uint32_t sync, uint32_t processes);

#endif
