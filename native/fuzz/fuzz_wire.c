/*
 * libFuzzer on everything that a stranger's bytes reach in wherry-init.
 *
 *   clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined -I native/include \
 *         native/fuzz/fuzz_wire.c native/lib/{wire,inherited,number}.c -o fuzz_wire && ./fuzz_wire -max_len=4096
 *
 * The invariants: a parsed frame lies within its bytes, a parsed request's lists end and its strings lie within it.
 */
#include <stdlib.h>
#include <string.h>

#include "wherry/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static void require(int condition)
{
    if (!condition)
        abort();
}

static void check_strings(char **strings, const uint8_t *payload, size_t length)
{
    for (; *strings; strings++)
        require((const uint8_t *)*strings >= payload &&
                (const uint8_t *)*strings + strlen(*strings) < payload + length);
}

static void check_frame(const uint8_t *bytes, size_t count, bool sealed)
{
    size_t wanted, tag = sealed ? WIRE_TAG : 0;
    struct wire_frame frame;
    ssize_t size = wire_parse_frame(bytes, count, sealed, &frame, &wanted);

    require(size <= (ssize_t)count && wanted >= WIRE_HEADER && wanted <= WIRE_HEADER + WIRE_REQUEST_MAX + WIRE_TAG);
    if (size > 0)
        require(frame.payload + frame.length + tag == bytes + size);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static struct wire_run run;
    char job[WIRE_JOB_MAX + 1];
    int number;
    pid_t pid;

    check_frame(bytes, count, false);
    check_frame(bytes, count, true);
    if (wire_parse_run(bytes, count, &run) == 0) {
        require(run.argv[0] && run.cwd && run.group_count <= WIRE_GROUPS_MAX);
        require(run.inherited.limit_count <= INHERITED_LIMITS && run.inherited.umask <= 0777);
        check_strings(run.argv, bytes, count);
        check_strings(run.envp, bytes, count);
    }
    wire_free_run(&run);
    if (wire_parse_job(bytes, count, job) == 0)
        require(strlen(job) == count);
    if (wire_parse_kill(bytes, count, &pid, &number) == 0)
        require(pid > 1 && number >= 0 && number <= 64);
    return 0;
}
