/*
 * fortran: handles as Fortran passes them. Where C has others, a Fortran handle is kept as an odd number, which no
 * address of an object is, and only translated when something is asked about it that is not known yet.
 */
#ifndef WHERRY_MPI_FORTRAN_H
#define WHERRY_MPI_FORTRAN_H

#include "library.h"

static inline word fortran_handle(word address)
{
    word number = *(const uint32_t *)address;

    return mpi.has_own_fortran ? number << 1 | 1 : number;
}

static inline bool is_from_fortran(word handle)
{
    return mpi.has_own_fortran && handle & 1;
}

static inline int fortran_number(word handle)
{
    return (int)(uint32_t)(handle >> 1);
}

static inline bool fortran_in_place(word address)
{
    return (const void *)address == mpi.fortran_in_place;
}

/* The address that C gives for a buffer. */
static inline word fortran_buffer(word address)
{
    if (fortran_in_place(address))
        return mpi.in_place;
    return (const void *)address == mpi.fortran_bottom ? 0 : address;
}

static inline word type_in_c(word handle)
{
    return is_from_fortran(handle) ? mpi.type_f2c(fortran_number(handle)) : handle;
}

static inline word operator_in_c(word handle)
{
    return is_from_fortran(handle) ? mpi.op_f2c(fortran_number(handle)) : handle;
}

/* A request as Fortran gets it, from the word where C has put it. */
static inline int fortran_request(word made)
{
    return mpi.has_own_fortran ? mpi.request_c2f(made) : (int)handle(made);
}

#endif
