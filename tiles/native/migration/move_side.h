/* A tile's side of a move: its state, the step in the shared record, the deadline, and whether the peer can answer. */
#ifndef WHERRY_MANYCORE_MIGRATION_MOVE_SIDE_H
#define WHERRY_MANYCORE_MIGRATION_MOVE_SIDE_H

#include "../kernel/tile.h"
#include "task_graph.h"

#define RESERVED_MS 10000  /* the destination waits for the source to answer */
#define FROZEN_MS 5000     /* the source waits for the commit */
#define POLL_NS 1000000  /* a core polls for so long */
#define POLL_REMOTE_NS 5000000 /* asleep on the bell, when the other side is another host */
#define ROUND_MAX 8        /* of precopy: then it is frozen however many pages are left */
#define ROUND_PAGES 8      /* so few are copied while it is frozen: another round would find as many */

/* The tile's part in a move. It belongs to the thread that runs the tasks. */
struct move_side {
    _Atomic uint32_t calls;    /* of move_engine_run() since it was last idle: the first caller runs the tasks */
    struct tasks tasks;
    struct move *move;         /* NULL: none */
    bool source;
    uint32_t process, peer;
    uint64_t place;
    int64_t deadline;
    const char *wrong;         /* why this side gives up */
    uint32_t group, piece, pieces; /* `faithful`: group of pages, the next of it, and all so far */
    uint8_t *at;               /* the piece's place here */
};

/* Whether the tile of this number has not died. */
bool side_is_alive(const struct tile *tile, uint32_t index);
/* Changes the step of the move, when it is `from`, and rings the other side. */
bool side_change_step(struct tile *tile, struct move *move, uint32_t from, uint32_t to);
/* Whether the other side may still leave this step: it is alive, nothing is decided, the deadline has not passed. */
bool side_may_go_on(struct tile *tile, uint32_t step);
/* Whether the location entry is still the same as at the move's begin: no commit, no end of the process, no loss. */
bool side_is_undecided(const struct tile *tile);
void side_set_deadline(struct tile *tile, int ms);
/* Whether the other side is on another host, so that our board acts for it. */
bool side_is_remote(const struct tile *tile);

#endif
