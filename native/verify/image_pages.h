/*
 * Goes through all pages that the images hold.
 *
 * A thread's rseq area (rseq(2)), which the kernel itself writes whenever it changes CPU, is left out.
 */
#ifndef WHERRY_VERIFY_IMAGE_PAGES_H
#define WHERRY_VERIFY_IMAGE_PAGES_H

#include <stddef.h>
#include <stdint.h>

/* Called for each run of bytes: where process `pid` (as its own namespace counts) has them. Nonzero ends it all. */
typedef int pages_sink(void *context, uint32_t pid, uint64_t address, int file, uint64_t offset, uint64_t count);

/* 0, what the sink returned, or negative errno. */
int pages_each(int directory, pages_sink *sink, void *context);

#endif
