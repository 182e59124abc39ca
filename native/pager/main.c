/*
 * wherry-pager: the memory of a node that moves, from its source to its destination (stream.h).
 *
 *   wherry-pager send --tasks FILE --hidden FILE --stream FD ...      at the source, while the node runs and is frozen
 *   wherry-pager send --probe                                         how writes are tracked on this kernel
 *   wherry-pager sample --tasks FILE --seconds SECONDS                how much the node writes; nothing is sent
 *   wherry-pager receive --socket PATH --tasks FILE --stream FD ...   at the destination, until the node has all of it
 *   wherry-pager receive --probe                                      whether this kernel lets it
 *   wherry-pager permitted BIT PID ...                                the processes that may use a CPU feature, as AMX
 *
 * `send` and `receive` take --key FD (frame_seal.h), `send` also --compress.
 */
#include <stdio.h>
#include <string.h>

#include "permitted.h"
#include "receive.h"
#include "receive_probe.h"
#include "sample.h"
#include "send.h"

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "send"))
        return send_run(argc - 1, argv + 1);
    if (argc == 3 && !strcmp(argv[1], "receive") && !strcmp(argv[2], "--probe"))
        return receive_probe();
    if (argc > 1 && !strcmp(argv[1], "receive"))
        return receive_run(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "sample"))
        return sample_run(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "permitted"))
        return permitted_run(argc - 1, argv + 1);
    fputs("usage: wherry-pager send | sample | receive | permitted ...\n", stderr);
    return 2;
}
