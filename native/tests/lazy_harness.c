/* See lazy_harness.h. */
#include "lazy_harness.h"

#include <fcntl.h>
#include <isa-l/crc.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"

static void connect_both(int *here, int *there)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

    CHECK(!bind(listener, (void *)&address, size) && !listen(listener, 1));
    CHECK(!getsockname(listener, (void *)&address, &size));
    *here = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(!connect(*here, (void *)&address, size));
    *there = accept(listener, NULL, NULL);
    CHECK(*there >= 0 && !setsockopt(*here, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)));
    close(listener);
}

static void list_this_process(void)
{
    FILE *tasks = fopen("cgroup.procs", "we");

    CHECK(tasks && fprintf(tasks, "%d\n", getpid()) > 0 && !fclose(tasks));
}

void receiver_begin(struct receiver *receiver, char *program, const char *rate)
{
    char first[12], second[12];
    char *arguments[] = {program, "receive", "--socket", "lazy-pages.socket", "--tasks", "cgroup.procs", "--stream",
                         first, "--stream", second, "--fill-rate", (char *)rate, "--fetch-stall", "2", NULL};
    int input[2], output[2], theirs[HARNESS_STREAMS];

    for (int i = 0; i < HARNESS_STREAMS; i++) {
        connect_both(&receiver->streams[i].fd, &theirs[i]);
        receiver->streams[i].sent = 0;
    }
    snprintf(first, sizeof(first), "%d", theirs[0]);
    snprintf(second, sizeof(second), "%d", theirs[1]);
    CHECK(!pipe2(input, O_CLOEXEC) && !pipe2(output, O_CLOEXEC));
    receiver->pid = fork();
    if (!receiver->pid) {
        dup2(input[0], 0);
        dup2(output[1], 1);
        execv(program, arguments);
        _exit(127);
    }
    list_this_process();
    close(input[0]), close(output[1]), close(theirs[0]), close(theirs[1]);
    receiver->input = input[1];
    receiver->output = fdopen(output[0], "r");
}

void receiver_says(struct receiver *receiver, const char *begin, char *line, size_t size)
{
    CHECK(fgets(line, (int)size, receiver->output));
    if (strncmp(line, begin, strlen(begin)))
        fprintf(stderr, "instead of \"%s\": %s", begin, line);
    CHECK(!strncmp(line, begin, strlen(begin)));
}

void send_frame(struct stream *stream, struct stream_frame frame, const void *payload)
{
    uint8_t header[STREAM_HEADER];

    frame.sequence = stream->sent++;
    stream_encode(&frame, header);
    CHECK(send(stream->fd, header, sizeof(header), MSG_NOSIGNAL | (frame.length ? MSG_MORE : 0)) == sizeof(header));
    CHECK(!frame.length || send(stream->fd, payload, frame.length, MSG_NOSIGNAL) == (ssize_t)frame.length);
}

void send_data(struct stream *stream, const void *address, uint32_t count, const void *bytes)
{
    struct stream_frame frame = {.type = 'D',
                                 .pid = (uint32_t)getpid(),
                                 .address = (uintptr_t)address,
                                 .pages = count,
                                 .length = count * STREAM_PAGE};

    frame.crc = ~crc32_iscsi((unsigned char *)bytes, (int)frame.length, ~0U);
    send_frame(stream, frame, bytes);
}

void send_hole(struct stream *stream, const void *address, uint32_t count)
{
    send_frame(stream,
               (struct stream_frame){
                   .type = 'Z', .pid = (uint32_t)getpid(), .address = (uintptr_t)address, .pages = count},
               NULL);
}

void send_end(struct receiver *receiver, uint32_t type, uint64_t number)
{
    struct stream_frame frame = {.type = type, .address = number};
    uint8_t answer[STREAM_HEADER];

    for (int i = 0; i < HARNESS_STREAMS; i++)
        send_frame(&receiver->streams[i], frame, NULL);
    CHECK(recv(receiver->streams[0].fd, answer, sizeof(answer), MSG_WAITALL) == sizeof(answer));
    CHECK(!stream_decode(answer, &frame) && frame.type == 'A' && frame.address == number);
}

int userfault_new(void)
{
    struct uffdio_api api = {.api = UFFD_API,
                             .features = UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP |
                                         UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE};
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

    CHECK(fd >= 0 && !ioctl(fd, UFFDIO_API, &api));
    return fd;
}

void userfault_register(int userfault, const void *address, size_t size)
{
    struct uffdio_register range = {.range = {(uintptr_t)address, size}, .mode = UFFDIO_REGISTER_MODE_MISSING};

    CHECK(!ioctl(userfault, UFFDIO_REGISTER, &range));
}

int userfault_hand_over(int userfault)
{
    struct sockaddr_un address = {AF_UNIX, "lazy-pages.socket"};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), pid = getpid(), zombie = -77;
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec piece = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);

    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(userfault));
    memcpy(CMSG_DATA(part), &userfault, sizeof(userfault));
    CHECK(!connect(fd, (void *)&address, sizeof(address)));
    CHECK(send(fd, &zombie, sizeof(zombie), 0) == 4 && send(fd, &pid, sizeof(pid), 0) == 4);
    CHECK(sendmsg(fd, &message, 0) == 1);
    return fd;
}

void restore_finished(int connection)
{
    uint32_t end = 0x52535446;

    CHECK(send(connection, &end, sizeof(end), 0) == 4);
    close(connection);
}
