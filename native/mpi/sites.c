#include "sites.h"

#include "objects.h"
#include "record.h"

#include <limits.h>
#include <stdlib.h>

struct levels *sites_known(word handle)
{
    struct communicator *comm = communicator_of(object_of(handle)); /* C and Fortran have the same levels */

    if (!comm || comm->inter)
        return NULL;
    if (!comm->was_asked) {
        comm->was_asked = true;
        comm->levels = levels_learn(comm->object, comm->size, comm->world);
    }
    if (comm->levels)
        levels_turn(comm->levels);
    return comm->levels;
}

struct levels *sites_begin(word handle)
{
    struct levels *at = sites_known(handle);

    return at && at->local ? at : NULL;
}

const struct communicator *sites_parted(word handle)
{
    const struct communicator *comm = communicator_of(object_of(handle));
    bool parted = false;

    if (!comm || comm->inter || comm->size < 3)
        return NULL;
    if (comm->was_asked)
        parted = comm->levels && comm->levels->sites > 1;
    else
        parted = levels_alike && map_first_parts(comm->size, comm->world);
    return parted ? comm : NULL;
}

struct levels *sites_begin_rooted(word handle, int root)
{
    struct levels *at = sites_begin(handle);

    return at && root >= 0 && root < at->size ? at : NULL;
}

void sites_count(void)
{
    page->by_levels++;
}

bool sites_choose(const struct levels *at, enum operation operation, int64_t bytes)
{
    bool ours;

    if (choices_tries(at->choices, operation, bytes))
        levels_meet(at);
    ours = choices_by_sites(at->choices, operation, bytes, at->across);

    page->by_levels += ours;
    return ours;
}

bool sites_end(const struct levels *at, int *result, int error)
{
    *result = error;
    if (error)
        mpi.call_errhandler(at->comm, (word)error);
    return true;
}

bool sites_may_reduce(const struct levels *at, int64_t bytes, word operator)
{
    int commutes = 0;

    if (bytes <= 0 || bytes > INT_MAX)
        return false;
    return at->in_order || (!mpi.op_commutative(operator, (word)&commutes) && commutes);
}

struct room *sites_rooms(const struct levels *at, int64_t count, word type)
{
    struct room *rooms = calloc((size_t)at->sites, sizeof *rooms);
    bool enough = rooms;

    for (int site = 0; enough && site < at->sites; site++)
        enough = site == at->site || make_room(&rooms[site], count, type);
    if (enough)
        return rooms;
    sites_free(at, rooms);
    return NULL;
}

void sites_free(const struct levels *at, struct room *rooms)
{
    for (int site = 0; rooms && site < at->sites; site++)
        free(rooms[site].base);
    free(rooms);
}

/*
 * Of the operator's two arguments the second one gets the result: so it begins with the last site, whose memory
 * takes all, and is copied where that is not `own`.
 */
int sites_combine(const struct levels *at, word own, const struct room *rooms, ptrdiff_t offset, int64_t count,
                  word type, word operator)
{
    word last = at->site == at->sites - 1 ? own : rooms[at->sites - 1].at + (word)offset;
    int error = 0;

    for (int site = at->sites - 2; site >= 0 && !error; site--) {
        word next = site == at->site ? own : rooms[site].at + (word)offset;

        error = mpi.reduce_local(next, last, (word)count, type, operator);
    }
    return error || last == own ? error : copy_elements(last, own, count, type, at->rank, at->across);
}
