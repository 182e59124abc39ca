/*
 * In place of mpi/library.c where collectives by sites run in SimGrid's SMPI, which simulates an MPI with all its ranks
 * in one process: this one is compiled for it by smpicc, so its header has the facts that mpi/library.c looks for. Each
 * rank has a copy of the whole program, our globals among it.
 */
#include "library.h"
#include "used_functions.h"

#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { NAME = 64 };

struct mpi mpi;

/* The function behind a wrapper: by its profiling name, as the wrapper itself has the other one. */
void *function_next(const char *const *names, const void *own)
{
    char name[NAME];
    void *found;

    (void)own;
    snprintf(name, sizeof name, "P%s", names[0]);
    found = dlsym(RTLD_DEFAULT, name);
    if (!found) {
        fprintf(stderr, "SMPI has no %s\n", name);
        abort();
    }
    return found;
}

#define TAKE(name, at) mpi.at = (__typeof__(mpi.at))(void *)PMPI_##name;

static void find_for_collectives(void)
{
    FUNCTIONS_OF_COLLECTIVES(TAKE)
    mpi.no_comm = (word)MPI_COMM_NULL;
    mpi.byte = (word)MPI_BYTE;
    mpi.statuses_ignore = (word)MPI_STATUSES_IGNORE;
    mpi.combiner_named = MPI_COMBINER_NAMED;
    mpi.errors_return = (word)MPI_ERRORS_RETURN;
    mpi.bitwise_and = (word)MPI_BAND;
    mpi.unsigned_long = (word)MPI_UNSIGNED_LONG;
    mpi.maximum = (word)MPI_MAX;
    mpi.collectives = true;
    mpi.ialltoallv = (call10)(void *)PMPI_Ialltoallv;
    mpi.direct = true;
}

bool library_find(void)
{
    FUNCTIONS_OF_ALL(TAKE)
    mpi.world = (word)MPI_COMM_WORLD;
    mpi.in_place = (word)MPI_IN_PLACE;
    find_for_collectives();
    mpi.ready = true;
    return true;
}

/* Only reductions in the order of ranks ask for objects by name, and they are not simulated. */
word library_object(const char *variable)
{
    (void)variable;
    return 0;
}
