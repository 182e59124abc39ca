/*
 * libFuzzer on the frames of a job's standard input, as wherry-launch takes them from a named pipe
 * (launch/job_input.h).
 *
 *   clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined native/fuzz/fuzz_job_input.c \
 *         native/launch/job_input.c -o fuzz_job_input && ./fuzz_job_input -max_len=4096
 *
 * Each byte of the input is followed by so many of the pipe. The invariant: the program gets no more bytes than were
 * put in, and `taken` never goes back.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "../launch/job_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static void require(int condition)
{
    if (!condition)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    int pipe_in[2], pipe_out[2];
    struct job_input input = {0};
    uint8_t scratch[4096];
    size_t got = 0, put = count;

    signal(SIGPIPE, SIG_IGN); /* as in wherry-launch; and the pipe is closed after a frame that is none */
    require(pipe2(pipe_in, O_NONBLOCK) == 0 && pipe2(pipe_out, O_NONBLOCK) == 0);
    input.fifo = pipe_in[0];
    input.program = pipe_out[1];
    while (count) {
        size_t size = bytes[0] + 1u < count ? bytes[0] + 1u : count;
        uint64_t before = input.taken;

        (void)!write(pipe_in[1], bytes, size);
        bytes += size, count -= size;
        for (int turn = 0; turn < 4; turn++) {
            ssize_t part;

            job_input_pass(&input);
            require(input.taken >= before && input.sent <= input.have && input.have <= sizeof input.bytes);
            while ((part = read(pipe_out[0], scratch, sizeof scratch)) > 0)
                got += (size_t)part;
        }
    }
    require(got <= put);
    if (input.fifo >= 0)
        close(input.fifo);
    if (input.program >= 0)
        close(input.program);
    close(pipe_in[1]);
    close(pipe_out[0]);
    return 0;
}
