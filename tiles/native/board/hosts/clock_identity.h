/*
 * The identity of CLOCK_MONOTONIC. Processes of one kernel and one time namespace, such as the boards of emulated
 * hosts, can compare their readings of it. Two machines have two clocks, however well they are synchronised.
 */
#ifndef WHERRY_MANYCORE_BOARD_HOSTS_CLOCK_IDENTITY_H
#define WHERRY_MANYCORE_BOARD_HOSTS_CLOCK_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

#define BOOT_SIZE 36 /* a UUID in letters */

struct clock {
    char boot[BOOT_SIZE + 4]; /* drawn by the kernel when it starts; empty: unknown, and nobody's */
    uint64_t space;           /* the time namespace; 0 where the kernel has none */
};

/* Of this process. */
void clock_identify(struct clock *clock);
bool clock_is_shared(const struct clock *one, const struct clock *other);

#endif
