/* The part of <string.h> that programs for tiles have. */
#ifndef WHERRY_TILE_STRING_H
#define WHERRY_TILE_STRING_H
#include <stddef.h>

void *memcpy(void *to, const void *from, size_t count);
void *memset(void *to, int byte, size_t count);
int memcmp(const void *left, const void *right, size_t count);
size_t strlen(const char *text);
int strcmp(const char *left, const char *right);

#endif
