/*
 * shared: messages between ranks of one host by its memory (docs/design/0023-inside-mpi.md).
 *
 * A message of some size is put into a segment of its receiver (segment.h), and the MPI library carries a descriptor in
 * its place, by the program's communicator, destination and tag. So who gets which message in which order stays the
 * library's, and a request is complete when the library reports so. Invariants: a descriptor is sent only when its
 * message is committed; a message that cannot be put there at once is sent by the library, so nothing here waits for
 * another rank.
 */
#ifndef WHERRY_MPI_SHARED_H
#define WHERRY_MPI_SHARED_H

#include "library.h"

#include <stddef.h>

extern bool shared HIDDEN; /* messages may go or come so */

/* When MPI is initialized, as this rank of so many. `usable`: one thread calls at a time. */
void shared_begin(bool usable, int rank, int size) HIDDEN;
/* Before MPI is finalized, and after that, when others do not send any more. */
void shared_end(void) HIDDEN;
void shared_remove(void) HIDDEN;

/*
 * Around the library's functions, which are called with the results of these. Arguments are words as the program passes
 * them, with `fortran` the addresses of all; errors are those of the call.
 */

/* Puts a message of the program into memory if it may go so; then its arguments are those of the descriptor. */
void shared_send(bool fortran, word *at, word *count, word *type, word dest, word comm) HIDDEN;

struct own_status {
    char bytes[64];
};
/* Where a receive puts its status: in `own` if the program wants none. */
word shared_status(bool fortran, word status, struct own_status *own) HIDDEN;
/* The end of a receive with that status: if a descriptor came, gets the message. */
int shared_receive(bool fortran, int error, word at, word count, word type, word comm, word status) HIDDEN;
/* Of a request that was made, behind its address; and that is freed. */
int shared_post(bool fortran, word request, word at, word count, word type, word comm, bool persistent) HIDDEN;
void shared_forget(bool fortran, word request) HIDDEN;
/*
 * A request that had this handle in C is complete, with this status. An error of ours, which was reported to the
 * program.
 */
int shared_complete(word request, word status) HIDDEN;

/* Requests that a call may complete; when one of them is `ours`, what it has received is looked at after the call. */
struct waited {
    bool ours, fortran;
    size_t number;
    word requests, status;
};
/* Where the call puts its status, or with `many` the statuses of all. `ours` is false before. */
word waited_begin(struct waited *waited, bool fortran, int number, word requests, word status, bool many) HIDDEN;
/* Of a call for all requests, which are complete if `done`; for any of them; for some. Indices are the program's. */
int waited_all(const struct waited *waited, int error, int done) HIDDEN;
int waited_any(const struct waited *waited, int error, int done, int index) HIDDEN;
int waited_some(const struct waited *waited, int error, int count, word indices) HIDDEN;

#endif
