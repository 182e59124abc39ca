/* The loader of user programs: an ELF file into a user region. */
#ifndef WHERRY_MANYCORE_BOARD_PROGRAM_LOADER_H
#define WHERRY_MANYCORE_BOARD_PROGRAM_LOADER_H

#include <stddef.h>
#include <stdint.h>

#include "../shared/user_area.h"

/*
 * Loads a program into `image` (USER_SIZE bytes, zeroed first) with its arguments and makes its first thread in `area`.
 * Returns NULL, or why it refuses, in words for the user. The file may hold anything at all.
 */
const char *program_load(const uint8_t *file, size_t size, int argc, char *const *argv, uint8_t *image,
                         struct user_area *area);

#endif
