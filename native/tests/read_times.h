/* How long reads of memory take that has to be filled in. */
#ifndef WHERRY_TESTS_READ_TIMES_H
#define WHERRY_TESTS_READ_TIMES_H

#include <stdint.h>

/* Prints it. `read` draws the page. */
void measure_reads(void (*read)(uint64_t *random), uint64_t seed);

#endif
