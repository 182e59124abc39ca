/*
 * wherry-writer: a program with memory and a connection, which measures how long a move stops it. No MPI: it runs
 * in a node and in any other container.
 *
 *   wherry-writer peer ADDRESS PORT      the end that stays
 *   wherry-writer write ADDRESS PORT BYTES RATE SET [random | /FILE]
 *
 * The writer fills BYTES of memory, connects to its peer, and about every millisecond makes a step: it writes as many
 * of the first SET bytes as RATE (bytes a second) makes due, page after page, and sends the step's number to the peer,
 * which sends it back. Both note the largest gap between two steps on CLOCK_REALTIME: inside a moved node other clocks
 * hide the gap.
 *
 * The peer prints "ready" at the first step. When its standard input ends it ends the writer, which compares all its
 * memory with its writes; then it prints one JSON line: gaps in seconds and when they began, steps, bytes written,
 * pages that are wrong, messages that were lost or doubled. Exit code 1: some were. The contents of a page follow from
 * its number and how often it was written, and that from how many pages were written in all, which the peer gets in
 * each step: so memory that is old as a whole is found, too. The words of a page are consecutive numbers, or with
 * `random` nothing that could be compressed. With a FILE, which is made, the memory is that file, mapped shared.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, CONNECT_SECONDS = 60 };
enum kind { STEP = 1, END, RESULT };

static const double longest_due = 0.01; /* s: after a gap nothing is made up for */

/* In the byte order of the machine, which both ends share. */
struct message {
    uint64_t kind, step, written, wrong;
    double gap, gap_at, seconds;
    uint64_t unused;
};

/* The gap between the steps of one end. */
struct gap {
    double last, largest, began;
};

/* Bytes that came over the connection, up to the end of the last whole message. */
struct inbox {
    int fd;
    size_t filled;
    struct message messages[64];
};

struct writer {
    uint64_t *memory;
    uint64_t pages, set_pages, written, step, echoed, lost;
    double rate, due;
    int is_random;
    struct gap gap;
};

static double now_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "wherry-writer: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void note(struct gap *gap, double now)
{
    if (gap->last > 0 && now - gap->last > gap->largest) {
        gap->largest = now - gap->last;
        gap->began = gap->last;
    }
    gap->last = now;
}

static void send_message(int fd, const struct message *message)
{
    if (send(fd, message, sizeof(*message), MSG_NOSIGNAL) != (ssize_t)sizeof(*message))
        fail("send");
}

/* Reads the messages there, or waits for some without MSG_DONTWAIT. Returns the number of whole messages. */
static size_t receive(struct inbox *inbox, int flags)
{
    size_t room = sizeof(inbox->messages) - inbox->filled;
    ssize_t got = recv(inbox->fd, (char *)inbox->messages + inbox->filled, room, flags);

    if (got == 0) {
        errno = ECONNRESET;
        fail("the other end");
    }
    if (got < 0 && errno != EAGAIN && errno != EINTR)
        fail("receive");
    inbox->filled += got > 0 ? (size_t)got : 0;
    return inbox->filled / sizeof(struct message);
}

/* Forgets `count` messages, all that `receive` returned. */
static void forget(struct inbox *inbox, size_t count)
{
    inbox->filled -= count * sizeof(struct message);
    memmove(inbox->messages, inbox->messages + count, inbox->filled);
}

/* The finalizer of splitmix64 (Steele, Lea, Flood 2014): neighbouring inputs give unrelated words. */
static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

/* A word of a page, by the page's first number. */
static uint64_t word_of(const struct writer *writer, uint64_t first, size_t number)
{
    return writer->is_random ? mix(first + number) : first + number;
}

static void write_page(struct writer *writer, uint64_t page, uint64_t version)
{
    uint64_t *words = writer->memory + page * WORDS, first = mix(page << 32 ^ version);

    for (size_t i = 0; i < WORDS; i++)
        words[i] = word_of(writer, first, i);
}

/* How often the page was written after it was filled. */
static uint64_t version_of(const struct writer *writer, uint64_t page)
{
    if (page >= writer->set_pages)
        return 0;
    return writer->written / writer->set_pages + (page < writer->written % writer->set_pages);
}

static uint64_t wrong_pages(const struct writer *writer)
{
    uint64_t wrong = 0;

    for (uint64_t page = 0; page < writer->pages; page++) {
        const uint64_t *words = writer->memory + page * WORDS;
        uint64_t first = mix(page << 32 ^ version_of(writer, page)), differs = 0;

        for (size_t i = 0; i < WORDS; i++)
            differs |= words[i] ^ word_of(writer, first, i);
        wrong += differs != 0;
    }
    return wrong;
}

static void write_due_pages(struct writer *writer, double seconds)
{
    writer->due += writer->rate / PAGE * (seconds < longest_due ? seconds : longest_due);
    for (; writer->due >= 1; writer->due--) {
        uint64_t page = writer->written % writer->set_pages;

        write_page(writer, page, version_of(writer, page) + 1);
        writer->written++;
    }
}

static struct sockaddr_in socket_address(char **arguments)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(arguments[1]))};

    if (inet_pton(AF_INET, arguments[0], &address.sin_addr) != 1) {
        errno = EINVAL;
        fail(arguments[0]);
    }
    return address;
}

/* Quick answers are the point, so nothing waits to be sent together. */
static void send_at_once(int fd)
{
    int on = 1;

    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0)
        fail("TCP_NODELAY");
}

static int connect_to(char **arguments)
{
    struct sockaddr_in address = socket_address(arguments);
    double until = now_seconds() + CONNECT_SECONDS;

    for (;;) {
        struct timespec nap = {.tv_nsec = 50000000};
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        if (fd < 0)
            fail("socket");
        if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0) {
            send_at_once(fd);
            return fd;
        }
        if (now_seconds() > until)
            fail("connect");
        close(fd);
        nanosleep(&nap, NULL);
    }
}

static int accept_one(char **arguments)
{
    struct sockaddr_in address = socket_address(arguments);
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0), fd;

    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(listener, 1) < 0)
        fail("listen");
    fd = accept(listener, NULL, NULL);
    if (fd < 0)
        fail("accept");
    close(listener);
    send_at_once(fd);
    return fd;
}

/* Takes messages that the peer sent back; returns whether one of them is the end. */
static int take_echoes(struct writer *writer, struct inbox *inbox)
{
    size_t count = receive(inbox, MSG_DONTWAIT);
    int ends = 0;

    for (size_t i = 0; i < count; i++) {
        if (inbox->messages[i].kind == END)
            ends = 1;
        else
            writer->lost += inbox->messages[i].step != ++writer->echoed;
    }
    forget(inbox, count);
    return ends;
}

/* Memory of this size, or a file that is mapped shared. */
static uint64_t *make_memory(size_t size, const char *path)
{
    int file = path ? open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    void *memory;

    if (path && (file < 0 || ftruncate(file, (off_t)size)))
        fail(path);
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, path ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, file, 0);
    if (memory == MAP_FAILED)
        fail("mmap");
    if (path)
        close(file);
    return memory;
}

/* `kind`: how its memory is, or NULL. */
static int write_until_the_end(char **arguments, const char *kind)
{
    struct writer writer = {
        .pages = strtoull(arguments[2], NULL, 10) / PAGE,
        .rate = atof(arguments[3]),
        .is_random = kind && *kind != '/'};
    struct timespec pause = {.tv_nsec = 1000000};
    struct inbox inbox = {0};
    double began;

    writer.set_pages = strtoull(arguments[4], NULL, 10) / PAGE;
    if (writer.set_pages < 1 || writer.set_pages > writer.pages) {
        errno = EINVAL;
        fail("SET");
    }
    writer.memory = make_memory(writer.pages * PAGE, kind && *kind == '/' ? kind : NULL);
    for (uint64_t page = 0; page < writer.pages; page++)
        write_page(&writer, page, 0);
    inbox.fd = connect_to(arguments);
    began = now_seconds();
    do {
        double now = now_seconds(), before = writer.gap.last > 0 ? writer.gap.last : now;
        struct message message = {.kind = STEP, .step = ++writer.step};

        note(&writer.gap, now);
        write_due_pages(&writer, now - before);
        message.written = writer.written;
        send_message(inbox.fd, &message);
        nanosleep(&pause, NULL);
    } while (!take_echoes(&writer, &inbox));
    struct message result = {
        .kind = RESULT,
        .step = writer.step,
        .written = writer.written,
        .gap = writer.gap.largest,
        .gap_at = writer.gap.began,
        .seconds = now_seconds() - began,
    };
    result.wrong = wrong_pages(&writer) + writer.lost;
    send_message(inbox.fd, &result);
    return result.wrong > 0;
}

static int print_result(const struct message *result, const struct gap *gap, uint64_t lost)
{
    printf("{\"gap\": %.6f, \"gap_at\": %.6f, \"peer_gap\": %.6f, \"peer_gap_at\": %.6f, \"steps\": %llu, "
           "\"written_bytes\": %llu, \"seconds\": %.3f, \"wrong\": %llu, \"lost\": %llu}\n",
           result->gap, result->gap_at, gap->largest, gap->began, (unsigned long long)result->step,
           (unsigned long long)(result->written * PAGE), result->seconds, (unsigned long long)result->wrong,
           (unsigned long long)lost);
    return result->wrong > 0 || lost > 0;
}

/* Ends the writer when standard input ends. */
static void end_with_input(struct pollfd *input, int fd)
{
    struct message end = {.kind = END};
    char text[256];

    if (!input->revents || read(input->fd, text, sizeof(text)) > 0)
        return;
    send_message(fd, &end);
    input->fd = -1; /* poll passes over it */
}

static int answer_until_the_end(char **arguments)
{
    struct inbox inbox = {.fd = accept_one(arguments)};
    struct pollfd waits[2] = {{.fd = inbox.fd, .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
    uint64_t step = 0, written = 0, lost = 0;
    struct gap gap = {0};

    for (;;) {
        size_t count = 0;

        if (poll(waits, 2, -1) < 0 && errno != EINTR)
            fail("poll");
        end_with_input(&waits[1], inbox.fd);
        if (waits[0].revents)
            count = receive(&inbox, MSG_DONTWAIT);
        for (size_t i = 0; i < count; i++) {
            const struct message *message = &inbox.messages[i];

            lost += message->written < written;
            written = message->written;
            if (message->kind == RESULT)
                return print_result(message, &gap, lost + (message->step != step));
            lost += message->step != ++step;
            note(&gap, now_seconds());
            send_message(inbox.fd, message);
            if (step == 1)
                puts("ready");
        }
        forget(&inbox, count);
    }
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 4 && strcmp(argv[1], "peer") == 0)
        return answer_until_the_end(argv + 2);
    if ((argc == 7 || (argc == 8 && (strcmp(argv[7], "random") == 0 || *argv[7] == '/'))) && strcmp(argv[1], "write") == 0)
        return write_until_the_end(argv + 2, argv[7]);
    fprintf(stderr, "usage: wherry-writer peer ADDRESS PORT\n"
                    "       wherry-writer write ADDRESS PORT BYTES RATE SET [random | /FILE]\n");
    return 2;
}
