/*
 * The memory that all tiles of one host and their name server share: one memfd, mapped by each wherever there is room.
 * It has no name in any file system, so it goes away with the last process that has it.
 *
 *   struct shared_memory   header | tiles | location entries | moves | endpoints
 *   user areas             one struct user_area for each slot
 *   images                 one user region of 2 MiB for each slot, 2 MiB aligned
 *
 * A *location entry* is the whole truth about who may run a tile process: one word, changed only by compare-and-swap.
 *
 *      63         32 31    24 23    16 15     8 7      0
 *      +------------+--------+--------+--------+--------+
 *      |   epoch    |   0    | state  |  slot  |  tile  |
 *      +------------+--------+--------+--------+--------+
 *
 * Every change of owner makes the epoch one larger, so a swap that expects an older word fails, and its caller finds
 * that it does not own the process (any more). A slot belongs to the tile of the entry that names it; the slots that no
 * entry names belong to the tiles that the name server reserved them for.
 *
 * `bell` of a tile is a futex word: a thread that leaves something for the tile's master adds one and wakes it.
 */
#ifndef WHERRY_MANYCORE_SHARED_SHARED_MEMORY_H
#define WHERRY_MANYCORE_SHARED_SHARED_MEMORY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "endpoint.h"
#include "user_area.h"

#define TILE_MAX 16
#define NAME_SIZE 64
#define NO_TILE 255
#define WISH_TAKEN 0x80000000u /* the name server has seen it */
#define SHARED_MEMORY_FD 3       /* where a tile finds it */
#define EVENT_FD 4        /* eventfd: rings the name server */

enum place_state { PLACE_FREE, PLACE_RUNNING, PLACE_ENDED, PLACE_LOST };

struct place { /* a location entry, taken apart */
    uint32_t epoch;
    uint8_t state, slot, tile;
};

struct location {
    _Atomic uint64_t word;
    _Atomic uint32_t moves;
    _Atomic uint32_t end;      /* 0, or 1 + the status with which the name server wants it to end, for `why` */
    uint32_t rank, ranks;      /* of a program that was started as several; `ranks` is 1 otherwise */
    uint8_t members[TILE_MAX]; /* process of each rank */
    int32_t status;            /* how it ended */
    char why[REASON_SIZE];     /* it was lost, or ended by a fault; empty otherwise */
    char program[NAME_SIZE];
};

enum move_step {
    MOVE_NONE, MOVE_ASKED, MOVE_TRACKING, MOVE_RESERVED, MOVE_FROZEN, MOVE_DONE, MOVE_ABORTED, MOVE_ELSEWHERE
};

/* How the source finds dirty pages (kernel/dirty_tracking.h). */
enum tracking_kind { TRACKING_NONE, TRACKING_MPROTECT, TRACKING_USERFAULTFD, TRACKING_KINDS };

#define WRITTEN_WORDS (USER_SIZE / PAGE_SIZE / 64)

/*
 * A move to the tile of the same number. ASKED by the name server; by the destination TRACKING (`precopy`: its user
 * region is mapped, it wants pages while the process runs) and RESERVED (it wants the process frozen); FROZEN by the
 * source (every core has acknowledged, the User Area is sealed), DONE by the destination after the swap of the location
 * entry. ABORTED by any side that finds a reason; it decides nothing, the location entry does. The side that changes
 * something here rings the other. Between hosts each of the two has such a record, in which its board plays the other.
 * ELSEWHERE: other hosts do it, and the leader waits (board/hosts/protocol.h). NONE: it is over and answered; but a
 * tile that was slow to notice may still have the record in hand, and write into the slot. Both are free when it has
 * not, or is dead.
 */
struct move {
    _Atomic uint32_t step;
    uint32_t process, from, to, mode, slot;
    uint64_t place;                /* the entry that the move began with */
    uint32_t serial;               /* between hosts: the leader's number of it (board/hosts/protocol.h) */
    _Atomic uint32_t allow, sent, taken; /* `faithful`: pieces allowed, put into `piece`, and taken from there */
    /* `precopy`: the destination has asked `wanted` times for the pages that were written, the source has answered
     * `scanned` times; `written` belongs to the source while they differ, else to the destination. */
    _Atomic uint32_t wanted, scanned;
    uint64_t written[WRITTEN_WORDS]; /* bit N: page N of the user region */
    uint32_t rounds, tracking;     /* enum tracking_kind */
    uint64_t before;               /* bytes copied before the freeze */
    char why[REASON_SIZE];
    uint64_t bytes;                /* copied while the process was frozen */
    /* its times are bounds: the two hosts have two clocks (board/hosts/clock_identity.h) */
    uint32_t at_most;
    int64_t asked, freezing, frozen, copied, committed; /* nanoseconds of CLOCK_MONOTONIC */
    _Atomic int64_t first, all;    /* the first thread, every thread that was ready runs again */
    uint8_t piece[PAGE_SIZE];
};

struct tile_record {
    _Atomic uint32_t bell;
    _Atomic uint32_t polling; /* somebody of the tile looks at the bell all the time: nobody has to be woken */
    _Atomic uint32_t alive, ready;
    _Atomic uint32_t wish;   /* a process asks for a move: 1 + (tile | mode << 8), WISH_TAKEN; 0 none */
    _Atomic int32_t answer;  /* to the wish that was refused: negative errno; 0 none */
    _Atomic uint32_t in_hand; /* 1 + the move whose record, and slot, the tile works with; 0 none */
    int32_t pid;
};

struct shared_memory {
    uint64_t magic;
    uint32_t build;                           /* a hash of the sources, so of everything that is laid out here */
    uint32_t tile_count, core_count;          /* cores of each tile, the master included */
    uint32_t first_tile, here;                /* of `tile_count` on all hosts, those from first_tile on are here */
    uint32_t mesh_width, mesh_height, hop_ns; /* of each host's tiles (mesh.h); 0: none is declared */
    _Atomic uint32_t fixed;                   /* the tiles' kernel keeps its process among its own data: it cannot move */
    uint32_t xfeatures, xsize;
    _Atomic uint32_t stop;
    _Atomic int64_t lease;                    /* when tiles end by themselves (CLOCK_MONOTONIC); 0: never */
    struct tile_record tiles[TILE_MAX];
    struct location locations[PROCESS_MAX];
    struct move moves[TILE_MAX];
    struct endpoint endpoints[PROCESS_MAX];
    _Atomic uint32_t said[PROCESS_MAX][PROCESS_MAX]; /* messages, pieces and signals of tiles here: from, to */
};

/* Makes the memfd and maps it. Returns the descriptor, or negative errno. */
int shared_create(uint32_t tile_count, uint32_t core_count, struct shared_memory **shared);
/* Maps the memfd of another process; -EPROTO when it is of another build. */
int shared_open(int fd, struct shared_memory **shared);
struct user_area *shared_area(struct shared_memory *shared, uint32_t slot);
uint8_t *shared_image(struct shared_memory *shared, uint32_t slot);
/* Where the slot's image lies in the memfd. */
uint64_t shared_image_offset(uint32_t slot);

uint64_t place_pack(struct place place);
struct place place_unpack(uint64_t word);
struct place shared_place(struct shared_memory *shared, uint32_t process);
/* Changes the entry from `from` to `to` with the next epoch. Returns false when it is not `from` any more. */
bool shared_commit(struct shared_memory *shared, uint32_t process, uint64_t from, struct place to);

bool shared_is_here(const struct shared_memory *shared, uint32_t tile);
void shared_ring(struct shared_memory *shared, uint32_t tile);
/* The board's eventfd, as this process has it: rung instead of a tile of another host. */
void shared_set_gateway(int fd);
/* An empty record, but for its step. */
void shared_clear_move(struct move *move);
/* Rings the tile that runs the process, if one does. */
void shared_ring_process(struct shared_memory *shared, uint32_t process);
void shared_ring_processes(struct shared_memory *shared, uint32_t processes);
/* Futex on a word of the shared memory; `timeout_ns` < 0 waits for ever. */
void shared_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns);
void shared_wake(_Atomic uint32_t *word);
int64_t shared_now(void);

#endif
