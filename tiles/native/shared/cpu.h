/* The part of the CPU's extended state that belongs to a program: x87, SSE, AVX, AVX-512. */
#ifndef WHERRY_MANYCORE_SHARED_CPU_H
#define WHERRY_MANYCORE_SHARED_CPU_H

#include <stdbool.h>
#include <stdint.h>

/* Components that this machine has switched on, of those above (XCR0). */
uint32_t cpu_xfeatures(void);
/* Bytes of their image in XSAVE's standard format. */
uint32_t cpu_xsize(void);

/* CPUs that this process may run on. */
int cpu_count(void);

/*
 * The calling thread asks Linux for short turns, so that it gets one soon. Returns whether Linux has them (6.12); if
 * not, nothing is changed.
 */
bool cpu_ask_short_turns(void);

/* The calling thread gets a CPU before others when it has something to do, which is seldom and short; as root. */
void cpu_ask_precedence(void);

#endif
