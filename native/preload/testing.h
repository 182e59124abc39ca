/*
 * testing: whether this thread is inside a call of MPI that tests and does not wait (MPI_Test and its kin, see test.c).
 * Then its program has other work if nothing has come, so who polls there must not sleep for a message.
 */
#ifndef WHERRY_TESTING_H
#define WHERRY_TESTING_H

#include <stdbool.h>

extern _Thread_local bool testing __attribute__((visibility("hidden"), tls_model("initial-exec")));

#endif
