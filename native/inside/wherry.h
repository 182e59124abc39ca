/*
 * wherry.h: questions and hints of a running MPI program to Wherry.
 *
 *   mpicc -o program program.c $(wherry inside c)
 *
 * Each call is one short request to Wherry's daemon over the network of the job's nodes. Outside of Wherry every call
 * returns WHERRY_OUTSIDE at once and does nothing else. Calls wait: for the answer, and wherry_move() until the move is
 * over, while the rank that called is frozen, moved and thawed like all others of its node. Any rank may ask at any time,
 * alone or with others; ranks of one node that ask for the same move share it. Nothing of MPI is called, but that Open
 * MPI makes progress while a rank waits for an act. Threads may call; a rank has one request at a time.
 */
#ifndef WHERRY_H
#define WHERRY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    WHERRY_OK = 0,
    WHERRY_OUTSIDE = 1,            /* the program does not run under Wherry */
    WHERRY_E_ARGUMENT = -1,        /* a name or number that cannot be right */
    WHERRY_E_REFUSED = -2,         /* nothing was changed; wherry_error() has the reason */
    WHERRY_E_FAILED = -3,          /* a move began and was rolled back */
    WHERRY_E_DENIED = -4,          /* this job may not ask for that */
    WHERRY_E_BUSY = -5,            /* too many requests, for half a minute */
    WHERRY_E_UNREACHABLE = -6,     /* no daemon answered for about 30 seconds */
    WHERRY_E_SYSTEM = -7,          /* no memory, no socket */
};

enum { WHERRY_NAME = 128 };        /* bytes of a name, with its end */

/* Where a rank's node is at this moment. */
struct wherry_place {
    char job[WHERRY_NAME];
    char cluster[WHERRY_NAME];
    char node[WHERRY_NAME];
    char host[WHERRY_NAME];
    char site[WHERRY_NAME];
    int rank;                      /* of MPI_COMM_WORLD; -1: not known */
    int ranks;
};

struct wherry_host {
    char name[WHERRY_NAME];
    char site[WHERRY_NAME];
    double cores;
    double free_cores;             /* that no node may use */
    double load;                   /* CPUs in use now; -1: not measured */
    double speed;                  /* of a core, beside a usual one's */
    uint64_t memory;               /* bytes */
    uint64_t free_memory;
    int nodes;                     /* of this job that are there */
    int usable;                    /* whether nodes of this cluster may go there now, room aside */
};

/* 1 under Wherry, else 0. Asks nobody. */
int wherry_active(void);

/* The reason of this thread's last error, in words. */
const char *wherry_error(void);

/* Where this rank is, or another one. */
int wherry_where(struct wherry_place *place);
int wherry_where_rank(int rank, struct wherry_place *place);

/* Fills at most `room` hosts; *count is how many there are. */
int wherry_hosts(struct wherry_host *hosts, int room, int *count);

/* Moves the own node, a rank's, or a named one of this job, and returns when it is there; at once if it is already. */
int wherry_move(const char *host);
int wherry_move_rank(int rank, const char *host);
int wherry_move_node(const char *node, const char *host);

/*
 * Leaves it to the daemon when: within `within` seconds (at most 3600), at the first moment outside of critical phases
 * at which the own node would be frozen for no longer than `downtime` seconds. With NULL for the host the daemon also
 * chooses the nodes of this job that move, and their hosts, by its rule of balancing, as soon as that pays. Returns
 * when the daemon has got it.
 */
int wherry_move_when_cheap(const char *host, double downtime, double within);

/* The daemon measures the job for two seconds and moves those of its nodes for which that pays; *moved is how many. */
int wherry_balance(int *moved);

/*
 * Hints. A phase of this rank begins or ends; amid a critical one the balancer moves nothing of this job. A job has
 * at most 256 phases at a time, one for each rank that reports one.
 */
int wherry_phase_begin(const char *name, int critical);
int wherry_phase_end(void);

/* How much is left to do. From the second call on the daemon can compute how long an iteration takes. */
int wherry_iterations_left(long iterations);
int wherry_expected(double seconds);

#ifdef __cplusplus
}
#endif
#endif
