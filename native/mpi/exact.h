/*
 * exact: whether the order in which a reduction is computed can show in its result.
 *
 * It cannot where a predefined operator is applied to integers. It can with floating point, also with MPI_MAX and
 * MPI_MIN (0 and -0 are alike, and so is NaN to all), with pairs of values that have floating point, and with operators
 * of the program's. A reduction not proved exact is taken for the other: then it only takes longer.
 */
#ifndef WHERRY_MPI_EXACT_H
#define WHERRY_MPI_EXACT_H

#include "hidden.h"
#include "library.h"

bool is_exact(word type, word operator) HIDDEN;
/* A predefined operator on numbers, for which it is defined. Errors of others are the library's to report. */
bool is_arithmetic(word type, word operator) HIDDEN;
/* MPI_OP_NULL, of which the library is to complain. */
bool is_no_operator(word operator) HIDDEN;

#endif
