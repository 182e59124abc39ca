/* See wherry/number.h. */
#include "wherry/number.h"

#include <errno.h>

int number_parse(const char *text, size_t length, uint64_t limit, uint64_t *value)
{
    uint64_t sum = 0;

    if (length == 0 || length > 19)
        return -EPROTO;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -EPROTO;
        sum = sum * 10 + (uint64_t)(text[i] - '0');
    }
    if (sum > limit)
        return -EPROTO;
    *value = sum;
    return 0;
}
