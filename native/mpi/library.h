/*
 * library: the MPI library of the process, and the differences between its families.
 *
 * No mpi.h. All arguments of the functions in functions.table are integers or addresses, so they are words to us, and are
 * passed on as they came. A handle is an int with MPICH and an address with Open MPI and the standard ABI; as a word both
 * are numbers that name an object.
 */
#ifndef WHERRY_MPI_LIBRARY_H
#define WHERRY_MPI_LIBRARY_H

#include "hidden.h"

#include <stdbool.h>
#include <stdint.h>

typedef uintptr_t word;

typedef int (*call1)(word);
typedef int (*call2)(word, word);
typedef int (*call3)(word, word, word);
typedef int (*call4)(word, word, word, word);
typedef int (*call5)(word, word, word, word, word);
typedef int (*call6)(word, word, word, word, word, word);
typedef int (*call7)(word, word, word, word, word, word, word);
typedef int (*call8)(word, word, word, word, word, word, word, word);
typedef int (*call9)(word, word, word, word, word, word, word, word, word);
typedef int (*call10)(word, word, word, word, word, word, word, word, word, word);
typedef int (*call12)(word, word, word, word, word, word, word, word, word, word, word, word);

/* Of the library that is there. `ready` is set last, once all the others are known. */
struct mpi {
    bool ready;
    bool short_handles;   /* ints: the upper half of a word that has one is not defined */
    bool has_own_fortran; /* its Fortran functions do not call those of C that we stand before */
    word world;           /* MPI_COMM_WORLD */
    word in_place;        /* MPI_IN_PLACE in C */
    const void *fortran_in_place, *fortran_bottom, *fortran_status_ignore, *fortran_statuses_ignore;
    call2 comm_rank, comm_size, comm_remote_size, comm_group, comm_remote_group, comm_test_inter;
    call2 type_size; /* MPI_Type_size_x: an int does not hold the size of every type */
    call1 group_free, query_thread;
    call5 group_translate_ranks;
    word (*comm_f2c)(int), (*type_f2c)(int), (*op_f2c)(int); /* where handles of Fortran are not those of C */

    /* For the collectives by levels: `collectives` is set where all of it is there. */
    bool collectives;
    word no_comm, byte, statuses_ignore; /* MPI_COMM_NULL, MPI_BYTE, MPI_STATUSES_IGNORE */
    word errors_return, bitwise_and;     /* MPI_ERRORS_RETURN, MPI_BAND */
    word unsigned_long, maximum;         /* MPI_UNSIGNED_LONG, MPI_MAX */
    int combiner_named;
    call1 barrier, comm_free, get_parent, errhandler_free;
    call2 op_commutative, get_errhandler, set_errhandler, call_errhandler;
    call3 waitall, type_get_extent, type_get_true_extent;
    call4 comm_split, pack_size, group_incl, comm_create_group;
    call5 bcast, reduce_local, type_get_envelope;
    call6 allreduce, scan, exscan, reduce_scatter;
    call7 isend, irecv, reduce, pack, unpack;
    call8 gather, scatter, allgatherv;
    call9 gatherv, scatterv, alltoallv;
    call12 sendrecv;

    /* For non-blocking ones beside it: `direct` is set where it is there. */
    bool direct;
    call10 ialltoallv;
    int (*request_c2f)(word); /* where handles of Fortran are not those of C */

    /* For messages by shared memory: `shared` is set where all of it is there. */
    bool shared;
    call1 type_free;
    call2 type_dup;
    call3 get_count, status_set_elements;
    word (*request_f2c)(int); /* where handles of Fortran are not those of C, as comm_f2c */
    int (*type_c2f)(word);

    /* For the placement of spawned processes: `places` is set where all of it is there. */
    bool places;
    word no_info; /* MPI_INFO_NULL */
    call1 info_create, info_free;
    call2 info_dup, library_version;
    call3 info_set;
    call5 info_get;
    word (*info_f2c)(int); /* where handles of Fortran are not those of C, as comm_f2c */
    int (*info_c2f)(word);
};

extern struct mpi mpi HIDDEN;

/* Looks for the library, when the program has initialized it. False when it is none that we know. */
bool library_find(void) HIDDEN;

/*
 * The function that the caller of `own` would have called without us: the first of `names` (NULL ends them) behind us in
 * the order of the dynamic linker, so another tool that is preloaded has its turn, or else the one of the MPI library that
 * was loaded for a library alone (RTLD_LOCAL, as Python loads extensions). Ends the process when there is none.
 */
void *function_next(const char *const *names, const void *own) HIDDEN;

/* The object that is such a variable of the library. */
word library_object(const char *variable) HIDDEN;

static inline word handle(word passed)
{
    return mpi.short_handles ? (uint32_t)passed : passed;
}

static inline word handle_at(word address)
{
    return mpi.short_handles ? *(const uint32_t *)address : *(const word *)address;
}

/* Whether another MPI program has started this one's world. */
static inline bool is_spawned(void)
{
    word parent = 0;

    return mpi.get_parent && mpi.no_comm && !mpi.get_parent((word)&parent) && handle(parent) != mpi.no_comm;
}

#endif
