/* What the leader knows of a process's last move between hosts; transfer.c alone changes it. */
#ifndef WHERRY_MANYCORE_BOARD_PASSAGE_H
#define WHERRY_MANYCORE_BOARD_PASSAGE_H

#include <stdbool.h>
#include <stdint.h>

enum passage_step {
    PASSAGE_NONE,
    PASSAGE_ASKED, /* MIGRATE has been said */
    PASSAGE_HELD,  /* the order to freeze has gone to the owner; what comes is kept, and what its tiles say waits */
    PASSAGE_GONE,  /* READY has come */
    PASSAGE_TOLD,  /* the source has been told since when it runs there, and tells the cost next */
};

struct passage {
    uint32_t serial;
    uint8_t step, source, to; /* enum passage_step, host, tile */
};

/* Whether the process is between MIGRATE and READY, or ABORT. */
static inline bool passage_is_moving(const struct passage *passage)
{
    return passage->step == PASSAGE_ASKED || passage->step == PASSAGE_HELD;
}

#endif
