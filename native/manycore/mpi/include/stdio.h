/* What programs for tiles have of <stdio.h>. */
#ifndef WHERRY_TILE_STDIO_H
#define WHERRY_TILE_STDIO_H
#include <stddef.h>

/* %d %u %x %c %s %f with width, precision, - and 0, l and z; what is said appears once and in order. */
int printf(const char *format, ...) __attribute__((format(printf, 1, 2)));
int puts(const char *text);

#endif
