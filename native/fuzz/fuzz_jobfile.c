/*
 * libFuzzer on the job file that wherry-rsh reads: it lies in a directory of the job's user.
 *
 *   clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined -I native/include native/fuzz/fuzz_jobfile.c \
 *         native/rsh/jobfile.c native/lib/{wire,inherited,number}.c -o fuzz_jobfile && ./fuzz_jobfile -max_len=4096
 *
 * The invariant: an accepted file has a user, a directory and nodes with keys, all within the text.
 */
#include <stdlib.h>
#include <string.h>

#include "../rsh/jobfile.h"
#include "wherry/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static void require(int condition)
{
    if (!condition)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    char *text = malloc(count + 1);
    struct jobfile job;
    int entry;

    require(text != NULL);
    memcpy(text, bytes, count);
    text[count] = 0;
    if (jobfile_parse(text, count, &job, &entry) == 0) {
        require(job.uid && job.gid && job.groups && job.cwd && job.inherited && job.node_count > 0 && entry == 0);
        for (size_t i = 0; i < job.node_count; i++) {
            require(strlen(job.nodes[i].key) == WIRE_KEY && job.nodes[i].key + WIRE_KEY <= text + count);
            require(jobfile_find_node(&job, job.nodes[i].name) != NULL);
        }
        for (size_t i = 0; i < job.environment_count; i++)
            require(strchr(job.environment[i], '=') != NULL);
    }
    jobfile_free(&job);
    return 0;
}
