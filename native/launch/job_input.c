/* See job_input.h. Nothing here waits: a program that does not read keeps its writer waiting, and nobody else. */
#include "job_input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ROOM = 1 << 20, /* bytes that may wait in the named pipe; the kernel's limit for anybody but root */
    AT_ONCE = 64,   /* frames, before output has its turn */
};

int job_input_open(struct job_input *input, int directory, int *end)
{
    int ends[2];

    if (mkfifoat(directory, "input", 0600) < 0)
        return -errno;
    input->fifo = openat(directory, "input", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (input->fifo < 0 || pipe2(ends, O_CLOEXEC) < 0 || fcntl(ends[1], F_SETFL, O_NONBLOCK) < 0)
        return -errno;
    (void)!fcntl(input->fifo, F_SETPIPE_SZ, ROOM); /* less is slower, no more */
    input->program = ends[1];
    *end = ends[0];
    return 0;
}

struct pollfd job_input_awaited(const struct job_input *input)
{
    if (input->sent < input->have && input->program >= 0)
        return (struct pollfd){.fd = input->program, .events = POLLOUT};
    return (struct pollfd){.fd = input->fifo, .events = POLLIN};
}

static void close_program(struct job_input *input)
{
    if (input->program >= 0)
        close(input->program);
    input->program = -1;
    input->sent = input->have;
}

static uint64_t big_endian(const uint8_t *bytes, int count)
{
    uint64_t value = 0;

    for (int i = 0; i < count; i++)
        value = value << 8 | bytes[i];
    return value;
}

/* Returns false when there is none. */
static bool take_frame(struct job_input *input)
{
    uint8_t header[INPUT_HEADER];
    uint64_t offset;
    size_t length;

    if (input->fifo < 0 || read(input->fifo, header, sizeof header) != (ssize_t)sizeof header)
        return false;
    offset = big_endian(header, 8);
    length = big_endian(header + 8, 2);
    if (length > sizeof input->bytes || read(input->fifo, input->bytes, length) != (ssize_t)length) {
        close_program(input); /* not one of ours: frames after it cannot be delimited */
        close(input->fifo);
        input->fifo = -1;
        return false;
    }
    input->have = input->sent = 0;
    if (length == 0 && offset == input->taken)
        close_program(input);
    if (offset <= input->taken && input->taken < offset + length) {
        input->have = length;
        input->sent = input->taken - offset;
        input->taken = offset + length;
    }
    return true;
}

/* Returns false when the program must read first. */
static bool give(struct job_input *input)
{
    ssize_t count;

    if (input->program < 0)
        input->sent = input->have;
    if (input->sent == input->have)
        return true;
    count = write(input->program, input->bytes + input->sent, input->have - input->sent);
    if (count >= 0)
        input->sent += (size_t)count;
    else if (errno != EAGAIN && errno != EINTR)
        close_program(input); /* it closed its end */
    return input->sent == input->have;
}

void job_input_pass(struct job_input *input)
{
    for (int frames = 0; frames < AT_ONCE && give(input) && take_frame(input); frames++)
        continue;
}
