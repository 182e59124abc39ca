/*
 * Checksums of memory, page by page: the CRC of a run is made of the CRCs of its pages, so that the destination can
 * make those while the pages arrive, before the run they are part of is known.
 */
#ifndef WHERRY_VERIFY_CHECKSUMS_H
#define WHERRY_VERIFY_CHECKSUMS_H

#include <stddef.h>
#include <stdint.h>

/* Continues `crc`, which begins with 0, over bytes from `address` on. They end a page or the run. */
uint32_t checksum_add(uint32_t crc, uint64_t address, const uint8_t *bytes, size_t count);

/* Takes in the bytes of the pages files that have come since the last call. 0 or negative errno. */
int checksums_follow(int directory);
/* The sum of a run of memory that lies in a pages file. 0 or negative errno; -ENODATA: the file is too short. */
int checksum_of_run(int file, uint64_t offset, uint64_t count, uint32_t *crc);

#endif
