/* CRC-32C (Castagnoli, RFC 3720), by the CPU's own instruction where it has one. */
#ifndef WHERRY_MANYCORE_SHARED_CRC32C_H
#define WHERRY_MANYCORE_SHARED_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues from `crc`, which begins with 0. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t count);
/* The same, bit by bit, on any CPU. */
uint32_t crc32c_plain(uint32_t crc, const void *bytes, size_t count);

#endif
