/* See commands.h. */
#include "commands.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int tree_failed(const char *what, int error)
{
    fprintf(stderr, "wherry-tree: %s: %s\n", what, strerror(-error));
    return FAILED;
}

int tree_descriptor(const char *text)
{
    char *end;
    long number = strtol(text, &end, 10);

    return *end || end == text || number < 0 || fcntl((int)number, F_GETFD) < 0 ? -1 : (int)number;
}
