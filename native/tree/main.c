/*
 * wherry-tree: the private files of a node that moves, from its source to its destination (wire.h).
 *
 *   wherry-tree send DIRECTORY FD [disk]         at the source, while the node runs and is frozen (send.c)
 *   wherry-tree receive DIRECTORY STAGING FD     at the destination, until all is there (receive.c)
 */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "receive.h"
#include "send.h"

int main(int argc, char **argv)
{
    if ((argc == 4 || (argc == 5 && !strcmp(argv[4], "disk"))) && !strcmp(argv[1], "send"))
        return tree_send(argv[2], argv[3], argc == 5);
    if (argc == 5 && !strcmp(argv[1], "receive"))
        return tree_receive(argv[2], argv[3], argv[4]);
    fputs("usage: wherry-tree send DIRECTORY FD [disk] | receive DIRECTORY STAGING FD\n", stderr);
    return WRONG_USAGE;
}
