/*
 * A connection between the boards of two hosts that outlives its TCP connections. Frames arrive once and in order:
 * each has a number, is kept until the other side has acknowledged it, and is sent again on the next connection.
 *
 *   frame:  struct frame_head | payload            integers little-endian, the layout of x86-64
 *   HELLO   the first on every TCP connection, in both directions: the identity and the last number received;
 *           see authentication.h
 *   ACK     a head without payload and number; every head carries the acknowledgement too
 */
#ifndef WHERRY_MANYCORE_BOARD_HOSTS_CHANNEL_H
#define WHERRY_MANYCORE_BOARD_HOSTS_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define FRAME_MAX (4u << 20) /* bytes of payload: a whole process and its messages */

enum frame_kind {
    FRAME_HELLO, FRAME_ACK,
    FRAME_PARCEL,    /* a message or signals for a process: struct parcel, and its bytes */
    FRAME_DELIVERED, /* to the board that `host` names: a parcel of its has reached the process */
    FRAME_PROCESS,  /* leader to all: struct process_info */
    FRAME_ENDED,     /* owner to leader: struct process_info */
    FRAME_START,     /* leader to owner: a new process, struct process_state */
    FRAME_MOVE,      /* leader to owner: struct order, move it between two tiles of yours */
    FRAME_MIGRATE,      /* leader to owner: struct order, move it to a tile of another host */
    FRAME_OFFER,     /* owner to leader to destination: struct offer */
    FRAME_WANT,      /* destination to leader to owner: struct want, its side of the move's record */
    FRAME_PAGES,     /* owner to leader to destination: struct pages, and those pages of the running process */
    FRAME_PIECE,     /* the same way: struct piece, and 4 KiB */
    FRAME_STATE,     /* the same way: struct process_state, the frozen process */
    FRAME_READY,     /* destination to leader: it runs here */
    FRAME_REFUSED,   /* either side to leader: struct order with why not */
    FRAME_GO,        /* leader to the owner: the parcels that were held have been sent */
    FRAME_COMMITTED, /* leader to the old owner: the process has another one */
    FRAME_RUNS,      /* destination to leader to the old owner: struct runs, since when */
    FRAME_ABORT,     /* leader to both sides: struct order with why; the process stays with its owner */
    FRAME_MOVED,     /* owner to leader: struct cost */
    FRAME_WISH,      /* owner to leader: struct order, the process itself asks to be moved */
    FRAME_ANSWER,    /* leader to owner: struct order, its wish is refused */
    FRAME_END,       /* leader to owner: struct order, end the process */
    FRAME_REPORT,    /* to the leader, every half second: struct report */
    FRAME_DOWN,      /* leader to all */
    FRAME_GONE,      /* leader to all: a host is gone */
    FRAME_NOTHING,   /* the first frame, of the size of a process: it grows the congestion window of TCP */
    FRAME_KINDS
};

struct frame_head {
    uint32_t size;     /* of the payload */
    uint16_t kind;
    uint8_t process, host;
    uint64_t number;   /* 0: HELLO and ACK */
    uint64_t received; /* last number that has come from the other side */
};

/*
 * A payload is the frame's own bytes, then memory of the caller, which stays mapped and is read when it is written
 * out.
 */
struct frame {
    struct frame *next;
    struct iovec *iov;
    size_t iov_count, own;
    int64_t made;
    struct frame_head head;
    uint8_t payload[];
};

struct channel {
    int fd; /* -1: not connected */
    int64_t heard; /* when bytes last came, nanoseconds of CLOCK_MONOTONIC */
    int64_t answered; /* when we made the last frame that was acknowledged: the other side received bytes later than that */
    uint64_t sent, received, told; /* numbers: last given to a frame, last that came, last that we acknowledged */
    struct frame *first, *last;    /* not acknowledged yet */
    struct frame *next;            /* to be written next */
    size_t written;                /* bytes of it */
    uint8_t *in;                   /* sizeof(struct frame_head) + FRAME_MAX bytes */
    size_t in_count;
};

typedef void channel_handler(void *context, struct channel *channel, const struct frame_head *head,
                             const uint8_t *payload);

int channel_start(struct channel *channel);
/* Uses a new TCP connection; the other side has received everything up to `received`. */
void channel_connect(struct channel *channel, int fd, uint64_t received);
void channel_disconnect(struct channel *channel);
void channel_send(struct channel *channel, enum frame_kind kind, uint32_t process, uint32_t host, const void *payload,
                  size_t size);
/* The same, with a payload of two parts. */
void channel_send_parts(struct channel *channel, enum frame_kind kind, uint32_t process, uint32_t host, const void *one,
                        size_t one_size, const void *two, size_t two_size);
/*
 * The same, of own bytes, which are copied, and memory of the caller, which is not: it stays mapped until the frame
 * has been acknowledged. After a broken connection, its content of that time is sent again, so the receiver must
 * tolerate changes.
 */
void channel_send_iov(struct channel *channel, enum frame_kind kind, uint32_t process, uint32_t host, const void *own,
                      size_t own_size, const struct iovec *iov, size_t iov_count);
/* Writes as much as the connection takes. */
void channel_write(struct channel *channel);
bool channel_wants_to_write(const struct channel *channel);
/* Reads all bytes that have come and hands whole frames to the handler. */
void channel_read(struct channel *channel, channel_handler *handler, void *context);
#endif
