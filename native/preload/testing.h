/*
 * testing: whether this thread is inside a call of MPI that tests and does not wait (MPI_Test and its kin, see test.c).
 * worked: whether its program did anything between two such calls, since this was last set to false. If so it has other
 * work when nothing has come, and who polls in the calls must not sleep for a message.
 */
#ifndef WHERRY_TESTING_H
#define WHERRY_TESTING_H

#include <stdbool.h>

extern _Thread_local bool testing, worked __attribute__((visibility("hidden"), tls_model("initial-exec")));

#endif
