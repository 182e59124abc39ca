/*
 * wherry-pager: the memory of a node that moves, from its source to its destination (stream.h).
 *
 *   wherry-pager send --tasks FILE --hidden FILE --stream FD ...      at the source, while the node runs and is frozen
 *   wherry-pager send --probe                                         whether this kernel tracks writes
 *   wherry-pager receive --socket PATH --tasks FILE --stream FD ...   at the destination, until the node has all of it
 */
#include <stdio.h>
#include <string.h>

#include "receive.h"
#include "send.h"

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "send"))
        return send_run(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "receive"))
        return receive_run(argc - 1, argv + 1);
    fputs("usage: wherry-pager send | receive ...\n", stderr);
    return 2;
}
