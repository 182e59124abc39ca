/* Bytes that the program at this end gives, for the session: as in inflow.h, compressed if it shall be. */
#ifndef WHERRY_TLS_OUTFLOW_H
#define WHERRY_TLS_OUTFLOW_H

#include <stddef.h>
#include <stdint.h>

enum { OUTFLOW_GIVEN_MAX = 1 << 16, OUTFLOW_ROOM = OUTFLOW_GIVEN_MAX + (1 << 12) };

struct outflow {
    void *packer; /* NULL: it goes as it is */
    int is_flushing;
    size_t given_at, given_count; /* of `given`, not packed yet */
    size_t ready_at, ready_count; /* of `room` */
    uint8_t given[OUTFLOW_GIVEN_MAX];
    uint8_t room[OUTFLOW_ROOM];
};

/* 0 or -ENOMEM. The byte that begins it is ready. */
int outflow_open(struct outflow *outflow, int compresses);
/* So many bytes, OUTFLOW_GIVEN_MAX at most, were put in `given`, when nothing was ready. 0 or -EIO. */
int outflow_give(struct outflow *outflow, size_t count);
/* The bytes ready for the session, and how many; `outflow_sent` when as much of it was sent. 0 or -EIO. */
const uint8_t *outflow_ready(const struct outflow *outflow, size_t *count);
int outflow_sent(struct outflow *outflow, size_t count);
void outflow_free(struct outflow *outflow);

#endif
