/* The tasks of a `faithful` move that send the process by pieces; see pieces.c. */
#ifndef WHERRY_MANYCORE_PIECES_H
#define WHERRY_MANYCORE_PIECES_H

#include "movegraph.h"

task_body pieces_group, pieces_loop, pieces_is_used, pieces_put, pieces_sent, pieces_allow, pieces_place,
    pieces_received;

#endif
