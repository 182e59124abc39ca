/*
 * receives: where requests under way put the messages that they receive, by their handles.
 */
#ifndef WHERRY_MPI_RECEIVES_H
#define WHERRY_MPI_RECEIVES_H

#include "library.h"

/* The arguments of a receive; `type` is a copy of the program's when `owns_type`. */
struct receive {
    word request; /* 0: none */
    word at, type, comm;
    int count;
    bool owns_type, persistent;
};

extern unsigned receives HIDDEN; /* how many there are */

/* One of that handle is replaced. False when there is no memory. */
bool receive_keep(struct receive receive) HIDDEN;
/* NULL: there is none. Valid until the next call of receive_keep() or receive_drop(). */
const struct receive *receive_of(word request) HIDDEN;
void receive_drop(word request) HIDDEN;

#endif
