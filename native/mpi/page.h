/*
 * page: the counts of a rank, in memory of its own that others read while it runs (src/wherry/job/mpi_profile.py has
 * the same layout).
 *
 * A process that may read the memory of this one finds `wherry_mpi_anchor` in the writable data of the library, and by
 * that the page. So there is no file or shared memory that a move, a crash or a full disk could do something to: the
 * page goes wherever the process goes. Invariants: all words are little-endian and 8-byte aligned, and written whole;
 * counters only grow; nothing moves once the anchor has its address. A child of fork() has a copy whose `process` is
 * not its own.
 *
 *     struct page | names | cells[operation][class] | ring | communicators | peers[world size + 1]
 *
 * Memory without a write is not there: the least for a rank is some pages, and 64 KiB of cells and 128 KiB of peers
 * the most for 4096 peers.
 */
#ifndef WHERRY_MPI_PAGE_H
#define WHERRY_MPI_PAGE_H

#include <stdint.h>

enum {
    PAGE_VERSION = 1,
    NAME_BYTES = 24,
    CLASSES = 16,       /* of sizes: none, 1 to 3 bytes, 4 to 15, 16 to 63 and so on; the last one has no end */
    RING = 4096,        /* calls that are remembered to find the period of the program */
    COMMUNICATORS = 64, /* the last one stands for all that have no place of their own */
    MULTIPLE = 1,       /* flag: several threads call at once, so only the first one's time is separate */
    SPAWNED = 2,        /* flag: another world has started this one */
};

#define PAGE_MAGIC "WHERRYMP"
#define ANCHOR_MAGIC "wherry: mpi page"

struct anchor {
    char magic[16];
    uint64_t address, bytes; /* of the page; 0: there is none yet */
    uint64_t process;        /* whose it is, as it counts itself */
};

struct page {
    char magic[8];
    uint32_t version, operations, classes, ring;
    uint32_t rank, size, communicators, flags;
    uint64_t names_at, cells_at, ring_at, communicators_at, peers_at, bytes;
    uint64_t ticks_per_second;
    uint64_t begun;                /* ticks, when MPI was initialized */
    uint64_t seen, seen_wall;      /* ticks, and nanoseconds of the wall clock at the same moment, about each second */
    uint64_t calls;                /* so many of the ring were written */
    uint64_t inside;               /* ticks in MPI */
    uint64_t polling;              /* ticks between tests with nothing between them */
    uint64_t now, since;           /* the operation that is under way, plus 1; ticks, when the last one began */
    uint64_t last;                 /* ticks, when the last one ended */
    uint64_t ended;                /* ticks, when MPI was finalized */
    uint64_t by_levels;            /* collectives that crossed the link between sites once, by us */
};

/* Calls of an operation with sizes of a class. `fastest` creeps up, so the fast time before a move is forgotten. */
struct cell {
    uint64_t calls, bytes, ticks, waiting, fastest, reserved;
};

struct ring_entry {
    uint32_t signature, time; /* of operation, class and peer; ticks >> 10 */
};

struct communicator_use {
    uint64_t size, calls, bytes, ticks;
};

/* One peer, by its rank in MPI_COMM_WORLD; the last one stands for ranks outside it. */
struct peer {
    uint64_t messages, bytes; /* sent to it */
    uint64_t receives, ticks; /* blocking receives from it, by name */
};

#endif
