/*
 * Bytes that came through a session (session.h), for the program at this end. Each direction of a session begins with
 * one byte:
 *
 *      '='   the rest is as it was given
 *      'z'   it is one stream of zstd, whose window has INFLOW_WINDOW_LOG bits at most; each piece is flushed
 */
#ifndef WHERRY_TLS_INFLOW_H
#define WHERRY_TLS_INFLOW_H

#include <stddef.h>
#include <stdint.h>

enum {
    INFLOW_PLAIN = '=',
    INFLOW_PACKED = 'z',
    INFLOW_WINDOW_LOG = 19,
    INFLOW_TAKEN_MAX = 1 << 14, /* of TLS: a record */
    INFLOW_ROOM = 1 << 17,
};

struct inflow {
    int kind; /* 0: nothing has come */
    int is_full; /* more may be unpacked from `taken` */
    void *unpacker;
    size_t taken_at, taken_count; /* of `taken`, still packed */
    size_t ready_at, ready_count;
    uint8_t taken[INFLOW_TAKEN_MAX];
    uint8_t room[INFLOW_ROOM];
};

/* Where as many as INFLOW_TAKEN_MAX bytes that came are put, once nothing is ready. */
uint8_t *inflow_taken(struct inflow *inflow);
/* So many were put there. 0, or -EPROTO: the bytes are none of this; or -ENOMEM. */
int inflow_take(struct inflow *inflow, size_t count);
/*
 * The bytes ready for the program, and how many; `inflow_given` when it was given as much of it. 0 or as `inflow_take`.
 */
const uint8_t *inflow_ready(const struct inflow *inflow, size_t *count);
int inflow_given(struct inflow *inflow, size_t count);
void inflow_free(struct inflow *inflow);

#endif
