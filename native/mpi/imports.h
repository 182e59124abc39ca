/*
 * imports: whether the program may receive messages of MPI by functions that we do not wrap.
 */
#ifndef WHERRY_MPI_IMPORTS_H
#define WHERRY_MPI_IMPORTS_H

#include <stdbool.h>

/*
 * By the imports of the loaded objects, without the MPI's own and ours: true when one of them calls a function that
 * looks at messages before they are received, receives in a way that shared.h does not handle, or is called behind us.
 * A function that a program finds by dlsym(3), or loads later, is not seen.
 */
bool imports_unseen(void) __attribute__((visibility("hidden")));

#endif
