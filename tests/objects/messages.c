/* Objects of which only a message has a descriptor that no program has received. */
#include "objects.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

static int ends[2], inner[2], kept = -1;

union ancillary {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr head;
};

static int send_one(int to, int fd)
{
    union ancillary space = {0};
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &space, .msg_controllen = sizeof space};

    space.head.cmsg_level = SOL_SOCKET, space.head.cmsg_type = SCM_RIGHTS, space.head.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&space.head), &fd, sizeof fd);
    return sendmsg(to, &message, 0);
}

static int receive_one(int from)
{
    char text;
    int fd = -1;
    union ancillary space = {0};
    struct iovec part = {&text, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &space, .msg_controllen = sizeof space};

    if (recvmsg(from, &message, MSG_DONTWAIT) == 1 && CMSG_FIRSTHDR(&message))
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* Into a message, as the only descriptor of its object. */
static const char *put(int fd)
{
    NEED(fd >= 0 && !socketpair(AF_UNIX, SOCK_STREAM, 0, ends) && send_one(ends[0], fd) == 1 && !close(fd));
    return OK;
}

static const char *make_unix_rights(void)
{
    int pipes[2];

    NEED(!pipe(pipes) && write(pipes[1], "sent", 4) == 4);
    return put(pipes[0]);
}
static const char *check_unix_rights(void)
{
    char text[8];
    int fd = receive_one(ends[1]);

    NEED(read(fd, text, sizeof text) == 4 && !memcmp(text, "sent", 4));
    return OK;
}

/* Of a socket in a message, and of one in a message at that. */
static const char *make_options_in_messages(void)
{
    int tcp = socket(AF_INET, SOCK_STREAM, 0), udp = socket(AF_INET, SOCK_DGRAM, 0), user_timeout = 12345, hops = 7;

    NEED(!setsockopt(tcp, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout, sizeof user_timeout));
    NEED(!setsockopt(udp, IPPROTO_IP, IP_MULTICAST_TTL, &hops, sizeof hops));
    NEED(!socketpair(AF_UNIX, SOCK_DGRAM, 0, inner) && send_one(inner[0], udp) == 1 && !close(udp));
    NEED(!*make_unix_rights() && send_one(ends[0], inner[1]) == 1 && !close(inner[1]));
    NEED(send_one(ends[0], tcp) == 1 && !close(tcp));
    return OK;
}
static const char *check_options_in_messages(void)
{
    int tcp, udp, user_timeout = 0, hops = 0;
    socklen_t size = sizeof hops;

    NEED(!*check_unix_rights());
    NEED((udp = receive_one(receive_one(ends[1]))) >= 0 && (tcp = receive_one(ends[1])) >= 0);
    NEED(!getsockopt(tcp, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout, &size) && user_timeout == 12345);
    NEED(!getsockopt(udp, IPPROTO_IP, IP_MULTICAST_TTL, &hops, &size) && hops == 7);
    return OK;
}

static int timer(void)
{
    struct itimerspec each = {{0, 20000000}, {0, 20000000}};
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);

    return timerfd_settime(fd, 0, &each, NULL) ? -1 : fd;
}
static const char *make_timer_in_message(void)
{
    return put(timer());
}
static const char *check_timer_in_message(void)
{
    uint64_t ticks = 0;
    int fd = receive_one(ends[1]);

    NEED(read(fd, &ticks, sizeof ticks) == sizeof ticks && ticks && read(fd, &ticks, sizeof ticks) == sizeof ticks);
    return OK;
}

static const char *make_timer_behind_message(void)
{
    int fd = timer();

    NEED(!*make_unix_rights() && send_one(ends[0], fd) == 1 && !close(fd));
    return OK;
}
static const char *check_timer_behind_message(void)
{
    NEED(!*check_unix_rights());
    return check_timer_in_message();
}

static const char *make_held_in_message(void)
{
    NEED((kept = dup(timer())) >= 0);
    return put(dup(kept));
}

static const char *make_semaphore_in_message(void)
{
    return put(eventfd(3, EFD_SEMAPHORE));
}
static const char *check_semaphore_in_message(void)
{
    uint64_t got = 0;

    NEED(read(receive_one(ends[1]), &got, sizeof got) == sizeof got && got == 1);
    return OK;
}

static const char *make_inotify_in_message(void)
{
    int fd = inotify_init1(IN_NONBLOCK);

    NEED(inotify_add_watch(fd, "/tmp", IN_DELETE_SELF) >= 0);
    return put(fd);
}
static const char *make_terminal_in_message(void)
{
    return put(posix_openpt(O_RDWR | O_NOCTTY));
}
static const char *make_file_in_message(void)
{
    return put(open("/usr/bin/env", O_RDONLY));
}
static const char *make_socket_at_itself(void)
{
    NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends) && send_one(ends[0], ends[1]) == 1);
    return OK;
}
static const char *check_in_message(void)
{
    NEED(receive_one(ends[1]) >= 0);
    return OK;
}

#define CASE(name, check) {#name, make_##name, check}
const struct object messages[] = {
    CASE(unix_rights, check_unix_rights), CASE(options_in_messages, check_options_in_messages),
    CASE(timer_in_message, check_timer_in_message), CASE(timer_behind_message, check_timer_behind_message),
    CASE(held_in_message, check_timer_in_message), CASE(semaphore_in_message, check_semaphore_in_message),
    CASE(inotify_in_message, check_in_message), CASE(terminal_in_message, check_in_message),
    CASE(file_in_message, check_in_message), CASE(socket_at_itself, check_in_message), {0},
};
