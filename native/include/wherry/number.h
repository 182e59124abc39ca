/* Numbers in text that comes from elsewhere. */
#ifndef WHERRY_NUMBER_H
#define WHERRY_NUMBER_H

#include <stddef.h>
#include <stdint.h>

/* Decimal number of `length` characters, nothing else around it, at most `limit`. Returns 0 or -EPROTO. */
int number_parse(const char *text, size_t length, uint64_t limit, uint64_t *value);

#endif
