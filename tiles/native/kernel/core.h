/* A slave core; see core.c for how a thread gets it and loses it, and entry.S for the switch. */
#ifndef WHERRY_MANYCORE_KERNEL_CORE_H
#define WHERRY_MANYCORE_KERNEL_CORE_H

#include "tile.h"

int core_start(struct core *core);
int core_install_handlers(struct tile *tile);
/* From here on Linux turns a system call that the calling thread makes in the user region into SIGSYS. */
int core_forbid_system_calls(void);
void core_run(struct core *core);
struct context *core_next(struct core *core);
struct context *core_call(struct core *core);
void core_fail(struct core *core);
extern const char core_gate[], core_gate_end[], core_enter[], core_enter_end[], core_preempted[], core_faulted[];

#endif
