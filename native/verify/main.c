/*
 * wherry-verify: checks that the data that arrived by a move equals the sent data.
 *
 *   wherry-verify digest IMAGES            at the destination: a line on stdin, then records on stdout
 *   wherry-verify compare IMAGES TASKS     at the source: records on stdin, data sent again on stdout
 *   wherry-verify patch TASKS              at the destination: data sent again on stdin
 *
 * IMAGES is the directory of CRIU's images, TASKS the cgroup.procs of the frozen node there. The destination makes
 * checksums of its data, of pages while they arrive, and of the rest when the line comes; the source, which is frozen,
 * makes checksums of the same memory and images where they came from. The node's files are wherry-tree's, which
 * compares them itself. A little memory that differs is sent again, and written into the restored processes, which are
 * frozen, too. A record ends with a zero byte, as only that is in no path; CRC is CRC-32C in hexadecimal:
 *
 *   p PID ADDRESS BYTES CRC     memory of a process, as its own PID namespace counts (checksums.h)
 *   i BYTES CRC PATH            a file below IMAGES
 *   m PID ADDRESS BYTES CRC     memory sent again, of which that many bytes follow; CRC is theirs
 *   .                           the end: nothing is missing
 *
 * Exit code: 0 the same, or patched; 1 different; 2 differences were sent again; 125 not known. stderr has the
 * difference, or the reason.
 */
#include <stdio.h>
#include <string.h>

#include "commands.h"

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "digest"))
        return digest_run(argv[2]);
    if (argc == 4 && !strcmp(argv[1], "compare"))
        return compare_run(argv[2], argv[3]);
    if (argc == 3 && !strcmp(argv[1], "patch"))
        return patch_run(argv[2]);
    fputs("usage: wherry-verify digest IMAGES | compare IMAGES TASKS | patch TASKS\n", stderr);
    return CANNOT_TELL;
}
