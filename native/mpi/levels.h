/*
 * levels: at which site the ranks of a communicator are, and when they go by a newer map of that.
 *
 * The map (map.h) is a hint for speed: results do not depend on it, only all ranks must go by the same. So the map of a
 * communicator changes within collectives alone, at the end of a collective that gave all its ranks the same answer:
 * its leaders name the newest map that they have got in the messages that they exchange anyway, and hand out the newest
 * with the result. Facts of one rank only (its memory, its threads, an error) are agreed on, too. There is no map for
 * processes that another program has spawned, nor where a rank's threads may call at once.
 */
#ifndef WHERRY_MPI_LEVELS_H
#define WHERRY_MPI_LEVELS_H

#include "choices.h"
#include "exchange.h"
#include "map.h"

#include <stdbool.h>
#include <stdint.h>

/* The sites of a communicator's ranks. Sites are numbered by their first ranks. */
struct levels {
    word comm;          /* the program's, as C has it */
    const int *world;   /* by rank, the rank in MPI_COMM_WORLD; NULL: the same */
    int size, rank;
    uint64_t epoch;     /* of the map that all ranks go by */
    unsigned turns;     /* collectives since they compared their maps */
    uint64_t news;      /* at a leader: the epoch of a newer map, in `map_incoming`; 0: there is none */

    int sites, site, number;   /* of this rank; within its site: 0 is the leader */
    int *site_of, *number_of;  /* by rank */
    int *order, *begins;       /* ranks by site and number; where those of each site begin, and all end */
    bool in_order;             /* the ranks of each site follow one another: `order` is that of ranks */
    int *numbers, *spare;      /* memory of those lists, and for the next ones */
    struct choices *choices;   /* of the library's own algorithms or ours */
    char *offers;              /* memory for a map of each site */
    word local, across;        /* of the site's ranks, and of all, for our messages alone; their errors are returned.
                                  No `local`: there is one site, or no two ranks are at one, and the library does all */
};

extern bool levels HIDDEN;       /* there is a map, and it may be used */
extern bool levels_alike HIDDEN; /* and all ranks got the same from the launcher */

static inline int leader_of(const struct levels *at, int site)
{
    return at->order[at->begins[site]];
}

static inline int ranks_at(const struct levels *at, int site)
{
    return at->begins[site + 1] - at->begins[site];
}

/* When MPI is initialized: reads the map. `usable`: this rank can do collectives so. With a map all ranks wait for each
 * other here. */
void levels_begin(bool usable) HIDDEN;
/* Of a communicator with these ranks in MPI_COMM_WORLD (NULL: all of it). All its ranks call it at once, and wait for
 * each other. NULL, at all of them: it has ranks outside our map, or one of them has had an error. */
struct levels *levels_learn(word comm, int size, const int *world) HIDDEN;
void levels_forget(struct levels *found) HIDDEN;

/* At the begin of each collective of the communicator: from time to time ranks compare their maps. */
void levels_turn(struct levels *at) HIDDEN;
/* The same at all ranks, of a collective after which they need not have waited for each other: it sends so many bytes
 * from one to another. The more, the sooner they do, as who is late keeps all that others have sent. */
void levels_weigh(struct levels *at, int64_t bytes) HIDDEN;
/* A leader's part of a flight between all leaders: the epoch of its newest map, or all of a new one. */
int levels_offer(const struct levels *at, struct flight *flight) HIDDEN;
/* When that has ended: sets `news`. */
void levels_judge(struct levels *at) HIDDEN;
/* The end of a collective whose leaders have judged: hands out a leader's elements within the site, and goes by a newer
 * map from now on. */
int levels_share(struct levels *at, word buffer, int64_t count, word type, int64_t bytes) HIDDEN;
/* All ranks wait for each other, and go by the same map as before. */
void levels_meet(const struct levels *at) HIDDEN;
/* The leaders' part of a barrier, with offers. */
int levels_exchange_nothing(struct levels *at) HIDDEN;

#endif
