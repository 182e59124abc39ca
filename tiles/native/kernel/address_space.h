/* The user region in a tile's own address space, at its fixed address. */
#ifndef WHERRY_MANYCORE_KERNEL_ADDRESS_SPACE_H
#define WHERRY_MANYCORE_KERNEL_ADDRESS_SPACE_H

#include "tile.h"

/* Maps the image of the slot with the rights of its parts; their bounds are in `area`. Returns 0 or negative errno. */
int address_space_map(struct tile *tile, uint32_t slot, const struct user_area *area);
void address_space_unmap(void);

#endif
