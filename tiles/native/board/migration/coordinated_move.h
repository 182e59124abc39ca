/* The leader's record of a process's last move between hosts; move_coordinator.c alone changes it. */
#ifndef WHERRY_MANYCORE_BOARD_MIGRATION_COORDINATED_MOVE_H
#define WHERRY_MANYCORE_BOARD_MIGRATION_COORDINATED_MOVE_H

#include <stdbool.h>
#include <stdint.h>

enum coordination_step {
    COORDINATION_NONE,
    COORDINATION_ASKED, /* MIGRATE was sent */
    /* the order to freeze has gone to the owner; parcels for it are held, and messages of its tiles wait */
    COORDINATION_FREEZING,
    COORDINATION_COMMITTED,  /* READY has come */
    COORDINATION_TIMED,  /* RUNS was forwarded to the source, which answers with the cost */
};

struct coordinated_move {
    uint32_t serial;
    uint8_t step, source, to; /* enum coordination_step, host, tile */
};

/* Whether the process is between MIGRATE and READY, or ABORT. */
static inline bool coordinated_move_is_under_way(const struct coordinated_move *coordinated)
{
    return coordinated->step == COORDINATION_ASKED || coordinated->step == COORDINATION_FREEZING;
}

#endif
