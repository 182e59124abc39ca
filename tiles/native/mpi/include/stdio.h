/* The part of <stdio.h> that programs for tiles have. */
#ifndef WHERRY_TILE_STDIO_H
#define WHERRY_TILE_STDIO_H
#include <stddef.h>

/* %d %u %x %c %s %f with width, precision, - and 0, l and z; text appears once and in order. */
int printf(const char *format, ...) __attribute__((format(printf, 1, 2)));
int puts(const char *text);

#endif
