/*
 * A source whose last pass leaves pages out (stream.h: M, P): requested pages are sent at once, all else slowly, on all
 * connections in turn.
 */
#ifndef WHERRY_TESTS_LATE_PAGES_H
#define WHERRY_TESTS_LATE_PAGES_H

#include "lazy_harness.h"

enum late_end { LATE_GOES_ON, LATE_CUT, LATE_STALL }; /* the event after half of them were sent */

/* Before late_begin. The contents come from `write`, by the address that a page has now. */
void late_add(const void *address, uint32_t count);
/* Ends the last pass; then a thread serves until nothing is needed any more. */
void late_begin(struct receiver *receiver, uint64_t number, void (*write)(void *bytes, uint64_t address),
                unsigned pages_per_ms, enum late_end end);
/* How many were asked for. */
unsigned late_join(void);

#endif
