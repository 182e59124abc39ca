/* Pipes, sockets, signals and files between processes that never stop: always something in flight, nothing lost. */
#include "objects.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

enum {
    BLOCK = 48 << 10,
    LAP = 32 << 10,           /* bytes that must have come in a lap */
    IN_FLIGHT = 96 << 10,     /* bytes that are under way between two laps, at most */
    PACKETS = 64,
    SIGNALS = 100,
    PATIENCE_MS = 30000,
    CONNECTIONS = 64,
};

static int ends[2];
static uint64_t sent, received;

static uint8_t byte_at(uint64_t offset)
{
    return (uint8_t)(offset * UINT64_C(0x9e3779b97f4a7c15) >> 56);
}

static void fill(uint8_t *bytes, size_t count, uint64_t offset)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = byte_at(offset + i);
}

static const char *take(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++, received++)
        if (bytes[i] != byte_at(received))
            return wrong("byte %lu of the stream is %02x instead of %02x", (unsigned long)received, bytes[i],
                         byte_at(received));
    return OK;
}

/* Threads that wait in vain, since before the first move, and a lap of short waits. None ends early. */
static atomic_int ended_early;
static void wait_for_ever(int kind)
{
    struct epoll_event event;
    struct timespec time = {.tv_sec = 1000000}, asked = time;
    uint64_t count;

    switch (kind) {
    case 0: poll(NULL, 0, -1); break;
    case 1: epoll_wait(epoll_create1(0), &event, 1, -1); break;
    case 2: nanosleep(&time, &time); break;
    case 3: nanosleep(&asked, NULL); break;
    case 4: (void)!read(eventfd(0, 0), &count, sizeof(count)); break;
    default: (void)!recv(ends[0], &count, sizeof(count), 0);
    }
    atomic_fetch_or(&ended_early, 1 << kind);
}
static void *waiter(void *kind) { wait_for_ever((int)(intptr_t)kind); return NULL; }
static const char *make_wait(void)
{
    pthread_t thread;

    NEED(!socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    for (int kind = 0; kind < 6; kind++)
        NEED(!pthread_create(&thread, NULL, waiter, (void *)(intptr_t)kind));
    return OK;
}
static const char *work_wait(void)
{
    struct timespec time = {.tv_nsec = 100 * 1000 * 1000};
    struct epoll_event event;
    int none = epoll_create1(0);

    NEED(poll(NULL, 0, 200) == 0);
    NEED(epoll_wait(none, &event, 1, 200) == 0);
    NEED(!nanosleep(&time, &time));
    NEED(!usleep(100 * 1000));
    close(none);
    return atomic_load(&ended_early) ? wrong("waits %x have ended", (unsigned)atomic_load(&ended_early)) : OK;
}

/* A writer that is blocked in write(2) for most of the time. */
static const char *make_pipe(void)
{
    static uint8_t block[BLOCK];

    NEED(!pipe(ends));
    if (fork_helper())
        return OK;
    for (;;) {
        size_t count = 1 + sent * 7919 % BLOCK;
        ssize_t done;

        fill(block, count, sent);
        done = write(ends[1], block, count);
        if (done < 0 && errno != EINTR)
            _exit(1);
        sent += done > 0 ? (uint64_t)done : 0;
    }
}
static const char *work_pipe(void)
{
    static uint8_t block[BLOCK];
    uint64_t until = received + LAP;
    const char *problem = OK;
    struct pollfd look = {.fd = ends[0], .events = POLLIN};

    while (!*problem && received < until) {
        ssize_t got;

        NEED(poll(&look, 1, PATIENCE_MS) == 1);
        got = read(ends[0], block, 1 + received * 31 % BLOCK);
        NEED(got > 0);
        problem = take(block, (size_t)got);
    }
    return problem;
}

/* Sends as much as it may, takes the bytes that come back, and leaves the rest under way. */
static const char *work_echo(void)
{
    static uint8_t block[BLOCK];
    uint64_t until = received + LAP;
    const char *problem = OK;

    while (!*problem && received < until) {
        struct pollfd look = {.fd = ends[0], .events = POLLIN | (sent - received < IN_FLIGHT ? POLLOUT : 0)};
        ssize_t done;

        NEED(poll(&look, 1, PATIENCE_MS) == 1);
        if (look.revents & POLLOUT) {
            fill(block, sizeof block, sent);
            done = send(ends[0], block, sizeof block, MSG_DONTWAIT | MSG_NOSIGNAL);
            NEED(done > 0 || errno == EAGAIN);
            sent += done > 0 ? (uint64_t)done : 0;
        }
        if (look.revents & (POLLIN | POLLHUP | POLLERR)) {
            done = recv(ends[0], block, sizeof block, MSG_DONTWAIT);
            if (done <= 0)
                return wrong("the connection has ended: %s", done ? strerror(errno) : "no more comes");
            problem = take(block, (size_t)done);
        }
    }
    return problem;
}
static const char *make_unix(void)
{
    static uint8_t block[BLOCK];

    NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    if (fork_helper())
        return OK;
    for (;;) {
        ssize_t got = recv(ends[1], block, sizeof block, 0), back = 0;

        while (got > 0 && back < got) {
            ssize_t done = send(ends[1], block + back, (size_t)(got - back), MSG_NOSIGNAL);

            if (done < 0 && errno != EINTR)
                _exit(1);
            back += done > 0 ? done : 0;
        }
        if (got == 0)
            _exit(0);
    }
}
/* The peer sends all bytes back; it is in another node, at PEER ("ADDRESS PORT"). */
static const char *make_tcp(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    const char *peer = getenv("PEER");
    char host[32];
    unsigned short port;

    NEED(peer && sscanf(peer, "%31s %hu", host, &port) == 2 && inet_aton(host, &address.sin_addr));
    address.sin_port = htons(port);
    NEED((ends[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    NEED(!connect(ends[0], (void *)&address, sizeof address));
    return OK;
}

/* Numbered packets; the sender is blocked in send(2). */
static const char *packets(int type)
{
    NEED(!socketpair(AF_UNIX, type, 0, ends));
    if (fork_helper())
        return OK;
    for (uint64_t number[20] = {0};; number[0]++)
        while (send(ends[1], number, 8 + number[0] % 152, MSG_NOSIGNAL) < 0)
            if (errno != EINTR)
                _exit(1);
}
static const char *make_unix_dgram(void) { return packets(SOCK_DGRAM); }
static const char *make_unix_packets(void) { return packets(SOCK_SEQPACKET); }
static const char *work_packets(void)
{
    struct pollfd look = {.fd = ends[0], .events = POLLIN};
    uint64_t number[20];

    for (int i = 0; i < PACKETS; i++, received++) {
        ssize_t got;

        NEED(poll(&look, 1, PATIENCE_MS) == 1);
        got = recv(ends[0], number, sizeof number, 0);
        if (got != (ssize_t)(8 + received % 152) || number[0] != received)
            return wrong("packet %lu of %zd bytes instead of %lu", (unsigned long)number[0], got,
                         (unsigned long)received);
    }
    return OK;
}

/* Queued signals with values, in order. */
static _Atomic uint64_t *taken;
static const char *make_signals(void)
{
    sigset_t set;
    pid_t parent = getpid();

    taken = mmap(NULL, sizeof *taken, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sigemptyset(&set), sigaddset(&set, SIGRTMIN + 5);
    NEED(taken != MAP_FAILED && !sigprocmask(SIG_BLOCK, &set, NULL));
    if (fork_helper())
        return OK;
    for (int number = 0;;)
        if ((uint64_t)number - *taken >= SIGNALS || sigqueue(parent, SIGRTMIN + 5, (union sigval){.sival_int = number}))
            sleep_ms(1);
        else
            number++;
}
static const char *work_signals(void)
{
    struct timespec patience = {PATIENCE_MS / 1000, 0};
    sigset_t set;
    siginfo_t info;

    sigemptyset(&set), sigaddset(&set, SIGRTMIN + 5);
    for (int i = 0; i < SIGNALS / 2; i++, ++*taken) {
        while (sigtimedwait(&set, &info, &patience) < 0)
            NEED(errno == EINTR);
        if ((uint64_t)info.si_value.sival_int != *taken)
            return wrong("signal %d instead of %lu", info.si_value.sival_int, (unsigned long)*taken);
    }
    return OK;
}

/* A question over a pipe, an answer by eventfd, awaited by epoll: no event is lost, none comes twice. */
static int answers, poller;
static const char *make_epoll(void)
{
    struct epoll_event event = {EPOLLIN | EPOLLET, {.u64 = 77}};

    NEED(!pipe(ends) && (answers = eventfd(0, EFD_NONBLOCK)) >= 0 && (poller = epoll_create1(0)) >= 0);
    NEED(!epoll_ctl(poller, EPOLL_CTL_ADD, answers, &event));
    if (fork_helper())
        return OK;
    for (uint64_t number = 0;;) {
        char question;
        ssize_t got = read(ends[0], &question, 1);

        if (got == 0 || (got < 0 && errno != EINTR))
            _exit(1);
        number += got > 0;
        if (got > 0 && write(answers, &number, sizeof number) != sizeof number)
            _exit(1);
    }
}
static const char *work_epoll(void)
{
    for (int i = 0; i < 20; i++) {
        struct epoll_event event;
        uint64_t value;
        int count;

        NEED(write(ends[1], "?", 1) == 1);
        while ((count = epoll_wait(poller, &event, 1, PATIENCE_MS)) < 0)
            NEED(errno == EINTR);
        NEED(count == 1 && event.data.u64 == 77);
        NEED(read(answers, &value, sizeof value) == sizeof value);
        if (value != ++received)
            return wrong("answer %lu instead of %lu", (unsigned long)value, (unsigned long)received);
        NEED(epoll_wait(poller, &event, 1, 0) == 0);
    }
    return OK;
}

/* Two writers append to one file that grows; a record is whole, and none is missing. */
struct record {
    uint64_t writer, number, check;
};
static uint64_t next_of[2];
static int append(uint64_t writer, uint64_t number)
{
    struct record record = {writer, number, (number << 8 | writer) * UINT64_C(0x9e3779b97f4a7c15)};

    return write(ends[0], &record, sizeof record) == sizeof record;
}
static const char *make_appended(void)
{
    ends[0] = open("/tmp/busy-appended", O_RDWR | O_CREAT | O_APPEND, 0600);
    NEED(ends[0] >= 0);
    if (fork_helper())
        return OK;
    for (uint64_t number = 0; append(1, number); number++)
        sleep_ms(2);
    _exit(1);
}
static const char *work_appended(void)
{
    struct record record;

    NEED(append(0, sent++));
    while (pread(ends[0], &record, sizeof record, (off_t)received) == sizeof record) {
        if (record.writer > 1 || record.number != next_of[record.writer]
            || record.check != (record.number << 8 | record.writer) * UINT64_C(0x9e3779b97f4a7c15))
            return wrong("at %lu: record %lu of writer %lu, check %lx", (unsigned long)received,
                         (unsigned long)record.number, (unsigned long)record.writer, (unsigned long)record.check);
        next_of[record.writer]++;
        received += sizeof record;
    }
    return next_of[0] == sent ? OK : "the file ends before its last record";
}

/*
 * Connections within the node that each have two small messages under way, of which the second one waits for the
 * acknowledgement of the first. Nothing is lost in a move that would have to be sent again later, from timer to timer.
 */
static int halves[CONNECTIONS][2];
/* struct tcp_info of linux/tcp.h, which is longer than the C library's. */
struct sent_again {
    struct tcp_info all;
    uint8_t others[216 - sizeof(struct tcp_info)];
    uint32_t in_vain; /* tcpi_dsack_dups: the receiver had it already */
};
static const char *make_halves(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    pid_t helper;

    NEED(!bind(listener, (void *)&address, size) && !getsockname(listener, (void *)&address, &size));
    NEED(!listen(listener, 1));
    for (int i = 0; i < CONNECTIONS; i++) {
        halves[i][1] = socket(AF_INET, SOCK_STREAM, 0);
        NEED(!connect(halves[i][1], (void *)&address, size) && (halves[i][0] = accept(listener, NULL, NULL)) >= 0);
    }
    close(listener);
    helper = fork_helper();
    for (int i = 0; i < CONNECTIONS; i++)
        close(halves[i][!!helper]);
    if (helper)
        return OK;
    for (int i = 0;; i = (i + 1) % CONNECTIONS) {
        struct sent_again told;
        uint8_t again;

        sleep_ms(1); /* so that at any time some acknowledgements are just about to be sent */
        size = sizeof(told);
        if (getsockopt(halves[i][1], IPPROTO_TCP, TCP_INFO, &told, &size))
            _exit(1);
        again = told.all.tcpi_total_retrans > told.in_vain + 1; /* one: a restore that took longer than its timer */
        if (write(halves[i][1], &again, 1) != 1 || write(halves[i][1], &again, 1) != 1)
            _exit(1);
    }
}
static const char *work_halves(void)
{
    static const int off;
    uint8_t got;

    for (int i = 0; i < CONNECTIONS; i++) {
        struct pollfd look = {.fd = halves[i][0], .events = POLLIN};

        setsockopt(halves[i][0], IPPROTO_TCP, TCP_QUICKACK, &off, sizeof(off));
        for (int half = 0; half < 2; half++) {
            NEED(poll(&look, 1, PATIENCE_MS) == 1 && read(halves[i][0], &got, 1) == 1);
            if (got)
                return wrong("data of connection %d were sent again", i);
        }
    }
    return OK;
}

#define CASE(name, work) {"busy_" #name, make_##name, work}
const struct activity flows[] = {
    CASE(wait, work_wait), CASE(pipe, work_pipe), CASE(unix, work_echo), CASE(tcp, work_echo), CASE(unix_dgram, work_packets),
    CASE(unix_packets, work_packets), CASE(signals, work_signals), CASE(epoll, work_epoll),
    CASE(appended, work_appended), CASE(halves, work_halves), {0},
};
