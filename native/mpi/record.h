/*
 * record: counts the calls of MPI that a rank makes, in the page of page.h.
 *
 * A call that begins is counted once when it ends, by the function for its kind. A call that call_begins() refuses is
 * passed on untouched: MPI is not initialized or not known, or the call is made inside another one; objects that it
 * frees are forgotten all the same. Nothing is allocated in a call but for the first one with a communicator. Where the
 * program may call from several threads at once, a lock is held for as long as counting takes.
 */
#ifndef WHERRY_MPI_RECORD_H
#define WHERRY_MPI_RECORD_H

#include "hidden.h"
#include "page.h"
#include "ticks.h"

#include <stdbool.h>
#include <stdint.h>

extern struct page *page HIDDEN;
extern _Thread_local bool inside_mpi __attribute__((visibility("hidden"), tls_model("initial-exec")));
extern bool several_threads HIDDEN; /* may call at once */
extern _Thread_local bool is_first_thread __attribute__((visibility("hidden"), tls_model("initial-exec")));
extern const char *const operation_names[] HIDDEN; /* of the generated wrappers */
extern const unsigned operations HIDDEN;

static inline bool call_begins(uint64_t *begin, unsigned operation)
{
    if (!page || inside_mpi)
        return false;
    inside_mpi = true;
    *begin = ticks();
    if (!several_threads || is_first_thread) {
        page->since = *begin;
        page->now = operation + 1;
    }
    return true;
}

void record_time(unsigned operation, uint64_t begin) HIDDEN;
void record_test(unsigned operation, uint64_t begin) HIDDEN;
void record_put(unsigned operation, uint64_t begin, int64_t count, uintptr_t type) HIDDEN;
void record_send(unsigned operation, uint64_t begin, int64_t count, uintptr_t type, int peer, uintptr_t comm) HIDDEN;
/* `count` is the most that was asked for. With `blocking` the time is its peer's. */
void record_receive(unsigned operation, uint64_t begin, int64_t count, uintptr_t type, int peer, uintptr_t comm,
                    bool blocking) HIDDEN;
void record_exchange(unsigned operation, uint64_t begin, int64_t count, uintptr_t type, int to, int from,
                     uintptr_t comm) HIDDEN;
/* `count` is this rank's contribution; with `each`, for each rank. */
void record_collective(unsigned operation, uint64_t begin, int64_t count, uintptr_t type, bool each, int root,
                       uintptr_t comm) HIDDEN;
/* The same with a list of counts for all ranks. */
void record_sum(unsigned operation, uint64_t begin, uintptr_t counts, uintptr_t type, uintptr_t comm) HIDDEN;

/* Remembers the message that a persistent request of a send sends when it is started. */
void remember_request(uintptr_t request, int64_t count, uintptr_t type, int peer, uintptr_t comm) HIDDEN;
void forget_request(uintptr_t request) HIDDEN;
void record_start(unsigned operation, uint64_t begin, uintptr_t request) HIDDEN;
void record_starts(unsigned operation, uint64_t begin, int count, uintptr_t requests, bool fortran) HIDDEN;

/* A handle that is free may soon name another object. */
void forget_comm(uintptr_t comm) HIDDEN;
void forget_types(void) HIDDEN;

/* Around MPI_Init and MPI_Finalize. */
void library_begins(void) HIDDEN;
void library_ends(void) HIDDEN;

#endif
