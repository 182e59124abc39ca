/* The tasks of a move at its destination; see move_engine.h. */
#ifndef WHERRY_MANYCORE_MIGRATION_DESTINATION_H
#define WHERRY_MANYCORE_MIGRATION_DESTINATION_H

#include "move_graph.h"

task_body destination_reserve, destination_round, destination_copy, destination_check, destination_pages,
    destination_commit, destination_adopt, destination_discard;

#endif
