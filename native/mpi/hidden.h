/*
 * hidden: what other libraries of the process do not see, as names of ours may be theirs too.
 */
#ifndef WHERRY_MPI_HIDDEN_H
#define WHERRY_MPI_HIDDEN_H

#define HIDDEN __attribute__((visibility("hidden")))

#endif
