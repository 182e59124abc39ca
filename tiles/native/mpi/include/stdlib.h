/* The part of <stdlib.h> that programs for tiles have. */
#ifndef WHERRY_TILE_STDLIB_H
#define WHERRY_TILE_STDLIB_H
#include <stddef.h>

void exit(int status) __attribute__((noreturn));
int atoi(const char *text);
/* Memory until the process ends; free() does nothing: a tile has 1468 KiB, and programs allocate at their start. */
void *malloc(size_t size);
void free(void *memory);

#endif
