/* The tasks of a `faithful` move that send the process by pieces; see portal_transfer.c. */
#ifndef WHERRY_MANYCORE_MIGRATION_PORTAL_TRANSFER_H
#define WHERRY_MANYCORE_MIGRATION_PORTAL_TRANSFER_H

#include "move_graph.h"

task_body portal_transfer_group, portal_transfer_loop, portal_transfer_is_used, portal_transfer_put, portal_transfer_sent,
    portal_transfer_allow, portal_transfer_place, portal_transfer_received;

#endif
