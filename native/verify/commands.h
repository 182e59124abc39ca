/* The commands of wherry-verify; see main.c. */
#ifndef WHERRY_VERIFY_COMMANDS_H
#define WHERRY_VERIFY_COMMANDS_H

#include <isa-l/crc.h>
#include <stddef.h>
#include <stdint.h>

enum { SAME = 0, DIFFERENT = 1, SENT_AGAIN = 2, CANNOT_TELL = 125 };
enum { BLOCK = 128 << 10 };         /* fits into the cache of a core */
enum { PATCH_MAX = 64 << 10 };      /* bytes; fits into a socket's buffer, as nobody reads while they are sent */

/* CRC-32C; continues from `crc`, which begins with 0. ISA-L keeps three of the CPU's CRC units busy at once. */
static inline uint32_t crc32c(uint32_t crc, const uint8_t *bytes, size_t count)
{
    return ~crc32_iscsi((unsigned char *)bytes, (int)count, ~crc);
}

int digest_run(const char *images);
int compare_run(const char *images, const char *tasks);
int patch_run(const char *tasks);

/* CRC-32C and size of a file. 0 or negative errno. */
int checksum_of_file(const char *path, uint64_t *size, uint32_t *crc);

#endif
