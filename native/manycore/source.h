/* The tasks of a move at its source; see moving.h. */
#ifndef WHERRY_MANYCORE_SOURCE_H
#define WHERRY_MANYCORE_SOURCE_H

#include "movegraph.h"

task_body source_scan, source_freeze, source_seal, source_await, source_take_back;

#endif
