/*
 * Messages between ranks, below MPI's calls.
 *
 * Every message begins with a packet in the receiver's mailbox, so messages of one sender arrive in order. Up to 96
 * bytes are in the packet; of more, it is an announcement: the sender has started a portal send under a ticket, and the
 * receiver allows that ticket once it has a place for the bytes. When as many portal sends wait as may, the
 * announcement is marked so, and the receiver asks for the bytes when it has allowed them: so a message with a receive
 * advances, however many before it have none. Everything is an operation of the kernel and runs beside the program,
 * through moves too; decisions are made in message_advance(), inside MPI's calls.
 */
#ifndef WHERRY_MANYCORE_MPI_POINT_TO_POINT_H
#define WHERRY_MANYCORE_MPI_POINT_TO_POINT_H

#include "../library/tile.h"
#include "mpi.h"

#define CONTEXT_USER 0
#define CONTEXT_COLLECTIVE 1 /* so that no wildcard of the program takes a message of a collective */

extern int message_rank, message_ranks;

void message_begin(void);
void message_fail(const char *what, long number) __attribute__((noreturn));
size_t message_size(int count, MPI_Datatype type);

int message_send(const void *bytes, size_t size, int to, int tag, int context);
int message_receive(void *bytes, size_t size, int from, int tag, int context);
/* Advances everything; `wait`: until something has happened. */
void message_advance(bool wait);
/* Whether a request is done; then its number is free again. */
bool message_is_done(int request, MPI_Status *status);
void message_wait(int request, MPI_Status *status);
/* Whether a message has come that a receive would take. */
bool message_find(int from, int tag, int context, MPI_Status *status);

#endif
