/*
 * wherry-link: a link between two sites, in user space: a TAP at each, and the line between them.
 *
 *   wherry-link --control SOCKET --tap NETNS:NAME --tap NETNS:NAME [--mtu BYTES] --set "RULES"
 *
 *       site a                                                                 site b
 *       bridge -- TAP --read--> loss -> queue -> bandwidth -> latency --write--> TAP -- bridge
 *                    <--write-- latency <- bandwidth <- queue <- loss <--read--
 *
 * It prints {"event": "ready"} when both TAPs are there, or {"event": "failed", "error": TEXT}, and lives in
 * the second namespace until a command ends it or it is killed; the TAPs go with it. The process that started it may
 * die: commands come as datagrams to SOCKET (see command.h for the words), and each is answered by one JSON object:
 *
 *   {"event": "ok", "cpu_us": N, "there": {"frames", "bytes", "lost", "dropped", "waiting"}, "back": {...}}
 *
 * `bytes` are those on the wire; `waiting` those on their way. One thread does it all, so it takes one core at most. It
 * runs before computing programs (SCHED_FIFO when that is allowed): a link that waits for a rank would be a slower
 * link.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "command.h"
#include "delay_queue.h"
#include "shape.h"
#include "tap.h"

enum {
    BATCH = 64,                   /* frames that are read before due ones are written */
    LINE_LIMIT = 256 << 20,       /* bytes on their way in one direction */
    WHOLE_FROM = 100000000,       /* bit/s: below, 64 KiB at once would block the line for more than 5 ms */
    EARLY_NS = 20000,             /* a frame due so soon is written now: the sleep would take longer */
    SLEEP_NS = 30000,             /* and no sleep is shorter: frames are moved in batches */
    WAKE_MAX_NS = 200000,         /* a later wake-up means that the processor was taken, which cannot be foreseen */
};

struct direction {
    int in, out;
    struct shape shape;
    struct delay_queue line;
    uint64_t frames, bytes, lost, dropped;
};

struct link {
    struct direction directions[2]; /* there, back */
    int control;
    int64_t wake_ns; /* recent duration of a wake-up: up to 0.2 ms where idle processors sleep deeply */
};

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int fail(const char *what, const char *object, int error)
{
    printf("{\"event\": \"failed\", \"error\": \"cannot %s %s: %s\"}\n", what, object, strerror(-error));
    return error;
}

/* `early_ns`: so long ago the first frame came, if it woke us. */
static void take_in(struct direction *direction, int64_t early_ns)
{
    uint8_t frame[TAP_FRAME_MAX];
    ssize_t length;

    for (int i = 0; i < BATCH && (length = read(direction->in, frame, sizeof(frame))) > TAP_HEADER; i++) {
        uint64_t bytes = tap_wire_bytes(frame, (size_t)length);
        int64_t due = shape_admit(&direction->shape, now_ns() - early_ns, bytes);

        if (due == SHAPE_LOST) {
            direction->lost++;
        } else if (due == SHAPE_DROPPED || delay_queue_push(&direction->line, due, frame, (size_t)length) < 0) {
            direction->dropped++;
        } else {
            direction->frames++;
            direction->bytes += bytes;
        }
    }
}

static void hand_out(struct direction *direction, int64_t until)
{
    struct delayed_frame *frame;

    while ((frame = direction->line.head) && frame->due_ns <= until) {
        if (write(direction->out, frame->bytes, frame->length) < 0)
            direction->dropped++;
        delay_queue_pop(&direction->line);
    }
}

static void set_rules(struct link *link, const struct shape_rules rules[2])
{
    for (int i = 0; i < 2; i++) {
        struct direction *direction = &link->directions[i];
        bool whole = rules[i].loss == 0 && (rules[i].bandwidth == 0 || rules[i].bandwidth >= WHOLE_FROM);

        delay_queue_hasten(&direction->line, shape_set_rules(&direction->shape, &rules[i], now_ns()));
        tap_set_whole(direction->in, whole); /* when it cannot be whole the kernel cuts it: slower, not wrong */
    }
}

static size_t describe(const struct link *link, char *text, size_t size)
{
    const struct direction *there = &link->directions[0], *back = &link->directions[1];
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    return (size_t)snprintf(
        text, size,
        "{\"event\": \"ok\", \"cpu_us\": %" PRId64 ", \"there\": {\"frames\": %" PRIu64 ", \"bytes\": %" PRIu64
        ", \"lost\": %" PRIu64 ", \"dropped\": %" PRIu64 ", \"waiting\": %zu}, \"back\": {\"frames\": %" PRIu64
        ", \"bytes\": %" PRIu64 ", \"lost\": %" PRIu64 ", \"dropped\": %" PRIu64 ", \"waiting\": %zu}}",
        (int64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000 + used.ru_utime.tv_usec +
            used.ru_stime.tv_usec,
        there->frames, there->bytes, there->lost, there->dropped, there->line.bytes, back->frames, back->bytes,
        back->lost, back->dropped, back->line.bytes);
}

/* One command and its answer. True when it was the last. */
static bool obey(struct link *link)
{
    struct sockaddr_un from;
    socklen_t size = sizeof(from);
    struct shape_rules rules[2];
    char line[256], answer[512] = "{\"event\": \"failed\", \"error\": \"the line is not understood\"}";
    ssize_t length = recvfrom(link->control, line, sizeof(line) - 1, MSG_DONTWAIT, (struct sockaddr *)&from, &size);
    size_t said = strlen(answer);
    int verb;

    if (length < 0)
        return false;
    line[length] = '\0';
    verb = command_parse(line, rules);
    if (verb == COMMAND_SET)
        set_rules(link, rules);
    if (verb >= 0)
        said = describe(link, answer, sizeof(answer));
    sendto(link->control, answer, said, MSG_DONTWAIT, (struct sockaddr *)&from, size);
    return verb == COMMAND_END;
}

static int64_t next_due(const struct link *link)
{
    int64_t due = INT64_MAX;

    for (int i = 0; i < 2; i++)
        if (link->directions[i].line.head && link->directions[i].line.head->due_ns < due)
            due = link->directions[i].line.head->due_ns;
    return due;
}

/* Moving average of the time between the moment that was slept for and now. */
static void learn_wake(struct link *link, int64_t took_ns)
{
    if (took_ns > WAKE_MAX_NS)
        took_ns = WAKE_MAX_NS;
    link->wake_ns += (took_ns - link->wake_ns) / 8;
}

static int serve(struct link *link)
{
    struct pollfd wait[3] = {{.fd = link->directions[0].in, .events = POLLIN},
                             {.fd = link->directions[1].in, .events = POLLIN},
                             {.fd = link->control, .events = POLLIN}};

    for (;;) {
        int64_t now = now_ns(), due = next_due(link), until = due == INT64_MAX ? due : due - link->wake_ns;
        bool long_enough = until - now > SLEEP_NS;
        int64_t pause = long_enough ? until - now : SLEEP_NS;
        struct timespec sleep = {.tv_sec = pause / 1000000000, .tv_nsec = pause % 1000000000};
        int ready = ppoll(wait, 3, due == INT64_MAX ? NULL : &sleep, NULL);

        if (ready < 0 && errno != EINTR)
            return -errno;
        if (ready == 0 && long_enough)
            learn_wake(link, now_ns() - until);
        for (int i = 0; i < 2; i++) {
            if (wait[i].revents & (POLLERR | POLLHUP | POLLNVAL))
                return -ENODEV; /* its TAP was removed: the daemon that repairs links makes a new one */
            if (wait[i].revents)
                take_in(&link->directions[i], long_enough && now_ns() - now > link->wake_ns ? link->wake_ns : 0);
        }
        now = now_ns();
        for (int i = 0; i < 2; i++)
            hand_out(&link->directions[i], now + EARLY_NS);
        if (wait[2].revents && obey(link))
            return 0;
    }
}

static int open_control(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd, error;

    if (strlen(path) >= sizeof(address.sun_path))
        return -ENAMETOOLONG;
    strcpy(address.sun_path, path);
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    umask(0177);
    unlink(path);
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

static void hurry(void)
{
    struct sched_param first = {.sched_priority = 1};

    if (sched_setscheduler(0, SCHED_FIFO, &first) < 0)
        setpriority(PRIO_PROCESS, 0, -20);
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
}

static _Noreturn void usage(void)
{
    fputs("usage: wherry-link --control SOCKET --tap NETNS:NAME --tap NETNS:NAME [--mtu BYTES]"
          " --set \"LATENCY JITTER BANDWIDTH LOSS LATENCY JITTER BANDWIDTH LOSS\"\n",
          stderr);
    exit(2);
}

struct arguments {
    const char *control;
    char *taps[2];
    unsigned mtu;
    struct shape_rules rules[2];
};

static void parse(struct arguments *arguments, int argc, char **argv)
{
    static const struct option options[] = {{"control", required_argument, NULL, 'c'},
                                            {"tap", required_argument, NULL, 't'},
                                            {"mtu", required_argument, NULL, 'm'},
                                            {"set", required_argument, NULL, 's'},
                                            {0}};
    char line[256];
    int option, taps = 0, verb = -EINVAL;

    while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
        if (option == 'c')
            arguments->control = optarg;
        else if (option == 't' && taps < 2 && strrchr(optarg, ':'))
            arguments->taps[taps++] = optarg;
        else if (option == 'm')
            arguments->mtu = (unsigned)strtoul(optarg, NULL, 10);
        else if (option == 's' && snprintf(line, sizeof(line), "set %s", optarg) < (int)sizeof(line))
            verb = command_parse(line, arguments->rules);
        else
            usage();
    }
    if (optind != argc || !arguments->control || taps != 2 || verb != COMMAND_SET)
        usage();
}

/*
 * The control socket first: the abstract address of a client is looked up in the namespace where the socket was made.
 */
static int make(struct link *link, const struct arguments *arguments)
{
    link->control = open_control(arguments->control);
    if (link->control < 0)
        return fail("listen at", arguments->control, link->control);
    for (int i = 0; i < 2; i++) {
        char *colon = strrchr(arguments->taps[i], ':');
        int tap;

        *colon = '\0';
        tap = tap_open(arguments->taps[i], colon + 1, arguments->mtu);
        if (tap < 0)
            return fail("make the TAP", colon + 1, tap);
        link->directions[i].in = link->directions[1 - i].out = tap;
        link->directions[i].line.limit = LINE_LIMIT;
        link->directions[i].shape.random = (uint64_t)now_ns() | 1;
    }
    set_rules(link, arguments->rules);
    return 0;
}

int main(int argc, char **argv)
{
    struct arguments arguments = {.mtu = 1500};
    struct link link = {0};

    parse(&arguments, argc, argv);
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (make(&link, &arguments) < 0)
        return 1;
    hurry();
    puts("{\"event\": \"ready\"}");
    return serve(&link) < 0;
}
