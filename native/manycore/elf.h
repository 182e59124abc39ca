/* The loader of user programs: an ELF file into a user region. */
#ifndef WHERRY_MANYCORE_ELF_H
#define WHERRY_MANYCORE_ELF_H

#include <stddef.h>
#include <stdint.h>

#include "uarea.h"

/*
 * Loads a program into `image` (USER_SIZE bytes, zeroed first) with its arguments and makes its first thread in `area`.
 * Returns NULL, or why it refuses, in words for the user. The file may hold anything at all.
 */
const char *elf_load(const uint8_t *file, size_t size, int argc, char *const *argv, uint8_t *image, struct uarea *area);

#endif
