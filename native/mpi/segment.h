/*
 * segment: messages from one rank to another, in files of the host that both reach (docs/design/0023-inside-mpi.md).
 *
 * The directory of a job at a host has a directory RANK for each rank that receives so, and in it files SENDER.SLOT for
 * one message each. They belong to the rank that receives: the mover of its node takes them along, to where the node's
 * own files are. A rank comes to the host's directory by a link among its node's own files, its *gate*, which a
 * move takes away; it makes a new one a while later, wherever it is then.
 * Invariants: between two calls of these functions a rank has no file open and none mapped, so a node is moved when none
 * of its ranks is within one. One rank writes a file while it has no message, and one reads it then; a message counts
 * once its writer finds the file still where it wrote it, so who renames the directory RANK has all that ever will.
 */
#ifndef WHERRY_MPI_SEGMENT_H
#define WHERRY_MPI_SEGMENT_H

#include "hidden.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SEGMENT_SLOTS = 8, /* messages from one rank to another that wait to be received */
    SEGMENT_DATA = 64, /* where the message begins in its file */
    SECRET_BYTES = 32,
};

/* Where a job's ranks find one another: a directory of the host, and how names among the node's own files begin. */
struct segment_places {
    const char *host, *own;
};

/* At the begin of a file. */
struct segment_head {
    uint64_t serial, bytes; /* of the message that waits; a serial of 0: none */
    uint64_t taken;         /* serial of the last received one */
    uint64_t messages;      /* how many there were */
};

/* The bytes that the MPI library carries instead of a message. */
struct descriptor {
    unsigned char secret[SECRET_BYTES]; /* of the job: it distinguishes this from 64 bytes of the program */
    uint64_t serial, bytes; /* serials are the sender's, and never repeat */
    uint32_t sender, slot, further[2];
};

/* A sender's records of the files of one receiver. A descriptor stays as it is until its message was received. */
struct outgoing {
    struct descriptor *told[SEGMENT_SLOTS];
    unsigned newest;
};

/* Puts a message where a rank receives it. NULL when it cannot be put there now: the rank is not at this host, or has
 * not received others yet, or there is no room. */
struct descriptor *segment_put(const struct segment_places *at, struct outgoing *out, int receiver, int sender,
                               const void *message, uint64_t bytes) HIDDEN;

/* The message of a descriptor into memory that has room for it, as its receiver. `moved`: it was taken along by a move.
 * 0, or errno. */
int segment_take(const struct segment_places *at, int receiver, const struct descriptor *descriptor, void *to,
                 bool *moved) HIDDEN;

/* This rank reaches its host's directory, and receives so. False when there is no such host, or another of its number. */
bool segment_begin(const struct segment_places *at, int rank, bool receives) HIDDEN;
/* Whether it still does; a move ends it. */
bool segment_is_here(const struct segment_places *at, int rank, bool receives) HIDDEN;
/* It does again, at the host where it is now. False when that failed. */
bool segment_return(const struct segment_places *at, int rank, bool receives) HIDDEN;
/* No more: its own files are removed. */
void segment_remove(const struct segment_places *at, int rank) HIDDEN;

#endif
