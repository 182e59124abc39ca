/*
 * hidden: names that other libraries of the process do not see, as they may have the same ones.
 */
#ifndef WHERRY_MPI_HIDDEN_H
#define WHERRY_MPI_HIDDEN_H

#define HIDDEN __attribute__((visibility("hidden")))

#endif
