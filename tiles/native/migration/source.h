/* The tasks of a move at its source; see move_engine.h. */
#ifndef WHERRY_MANYCORE_MIGRATION_SOURCE_H
#define WHERRY_MANYCORE_MIGRATION_SOURCE_H

#include "move_graph.h"

task_body source_scan, source_freeze, source_seal, source_await, source_take_back;

#endif
