#include "exchange.h"
#include "receives.h"
#include "shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The handles of an array before the library changes it, and statuses that the program does not want. */
static word *before;
static struct own_status *spare;
static size_t before_room, spare_room;

/* Without it we would not find the place where the library is about to receive. */
static void *more(void *old, size_t *room, size_t number, size_t size)
{
    if (number <= *room)
        return old;
    old = realloc(old, number * size);
    if (!old) {
        dprintf(STDERR_FILENO, "wherry: there is no memory for %zu requests\n", number);
        abort();
    }
    *room = number;
    return old;
}

static word handle_in(const struct waited *waited, size_t index)
{
    if (waited->fortran)
        return mpi.request_f2c(((const int *)waited->requests)[index]);
    return handle_at(waited->requests + index * (mpi.short_handles ? sizeof(uint32_t) : sizeof(word)));
}

static word status_of(const struct waited *waited, size_t index)
{
    return waited->status + index * (mpi.short_handles ? 20 : 24); /* MPICH's, Open MPI's */
}

word waited_begin(struct waited *waited, bool fortran, int number, word requests, word status, bool many)
{
    const void *in_fortran = many ? mpi.fortran_statuses_ignore : mpi.fortran_status_ignore;
    word ignored = fortran ? (word)in_fortran : mpi.statuses_ignore;

    waited->fortran = fortran;
    waited->requests = requests;
    waited->number = number > 0 ? (size_t)number : 0;
    for (size_t i = 0; i < waited->number && !waited->ours; i++)
        waited->ours = receive_of(handle_in(waited, i));
    if (!waited->ours)
        return status;
    before = more(before, &before_room, waited->number, sizeof *before);
    for (size_t i = 0; i < waited->number; i++)
        before[i] = handle_in(waited, i);
    if (status == ignored) {
        spare = more(spare, &spare_room, many ? waited->number : 1, sizeof *spare);
        status = (word)spare;
    }
    return waited->status = status;
}

/* After an error some requests may be under way still: the ones still in the array. */
static int complete(const struct waited *waited, int error, size_t index, word status)
{
    int own;

    if (index >= waited->number || !receive_of(before[index]) || (error && handle_in(waited, index) == before[index]))
        return error;
    own = shared_complete(before[index], status);
    return error ? error : own;
}

int waited_all(const struct waited *waited, int error, int done)
{
    for (size_t i = 0; i < waited->number && (done || error); i++)
        error = complete(waited, error, i, status_of(waited, i));
    return error;
}

int waited_any(const struct waited *waited, int error, int done, int index)
{
    index -= waited->fortran;
    return done && !error && index >= 0 ? complete(waited, error, (size_t)index, waited->status) : error;
}

int waited_some(const struct waited *waited, int error, int count, word indices)
{
    for (int i = 0; i < count && (size_t)i < waited->number; i++) {
        int index = ((const int *)indices)[i] - waited->fortran;

        error = index < 0 ? error : complete(waited, error, (size_t)index, status_of(waited, (size_t)i));
    }
    return error;
}
