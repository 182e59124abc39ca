/*
 * exchange: memory for elements of any type, and messages between ranks that are under way together.
 *
 * Messages are elements, or their bytes one after the other, as MPI_Pack makes them, on machines that are alike. So
 * both ends of a message need the same number of bytes, and may have different types. Messages of some size are cut:
 * MPI libraries ask before they send a large one, which costs a crossing for each way.
 */
#ifndef WHERRY_MPI_EXCHANGE_H
#define WHERRY_MPI_EXCHANGE_H

#include "hidden.h"
#include "library.h"

#include <stddef.h>

enum {
    TAG = 1,
    NO_MEMORY = 16,          /* MPI_ERR_OTHER or near it, in all libraries */
    LARGE = 2 * 1024 * 1024, /* bytes from which libraries may ask: a receiver that is late need not keep so much */
};

/* Memory for so many elements of a type: `at` is given to MPI, `base` is to be freed. */
struct room {
    char *base;
    word at;
};

/* Messages under way, and memory for bytes of elements that do not lie in memory as they are sent. {0} at first. */
struct flight {
    char *requests; /* handles, of the library's size */
    int count, room;
    struct parcel *parcels;
    int packed, parcels_room;
};

bool make_room(struct room *room, int64_t count, word type) HIDDEN;
ptrdiff_t extent_of(word type) HIDDEN;
/* Whether elements of the type lie in memory as they are sent: a basic type of so many bytes, without gaps. */
bool is_plain(word type, int64_t size) HIDDEN;
/* Copies elements, within a process; `comm` is any with a rank of that number for itself. */
int copy_elements(word from, word to, int64_t count, word type, int rank, word comm) HIDDEN;

/* The bytes of elements, from and to where they are. */
int bytes_from(char *to, word from, int64_t count, word type, int64_t bytes, word comm) HIDDEN;
int bytes_into(word to, int64_t count, word type, const char *from, int64_t bytes, word comm) HIDDEN;

/* Bytes of a message that no library asks about before it sends it. */
int64_t piece_bytes(void) HIDDEN;
/* One message, by mpi.isend or mpi.irecv. */
int post_message(struct flight *flight, call7 function, word at, int64_t count, word type, int peer, word comm) HIDDEN;
/* Elements of a type and so many bytes that both ends know alike: cut between elements. */
int send_elements(struct flight *flight, word at, int64_t count, word type, int64_t size, int peer, word comm) HIDDEN;
int receive_elements(struct flight *flight, word at, int64_t count, word type, int64_t size, int peer,
                     word comm) HIDDEN;
/* Elements whose type may be another one at the other end: their bytes are cut. */
int send_bytes(struct flight *flight, word at, int64_t count, word type, int64_t bytes, int peer, word comm) HIDDEN;
int receive_bytes(struct flight *flight, word at, int64_t count, word type, int64_t bytes, int peer, word comm) HIDDEN;
/* Bytes as they are at both ends. */
static inline int send_plain(struct flight *flight, word at, int64_t bytes, int peer, word comm)
{
    return send_bytes(flight, at, bytes, mpi.byte, bytes, peer, comm);
}

static inline int receive_plain(struct flight *flight, word at, int64_t bytes, int peer, word comm)
{
    return receive_bytes(flight, at, bytes, mpi.byte, bytes, peer, comm);
}

/* Waits for all of them; of two errors, `error` is returned. */
int end_flight(struct flight *flight, int error) HIDDEN;

#endif
