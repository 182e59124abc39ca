/* See receive.h. */
#include "receive.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cache.h"
#include "fill.h"
#include "frame_seal.h"
#include "guard.h"
#include "lazy.h"
#include "node_group.h"
#include "object_fill.h"
#include "receiver.h"

enum {
    EVENTS = 64,
    FILL_THREADS = 2,
    TOO_LATE = 5,   /* an exit code */
    FETCH_LOOK_MS = 100,
    THAW_MS = 1000, /* behind `objects`, and again, it is looked whether the node runs without a line `thawed` */
    CONTINUE = -1,  /* instead of an exit code */
};

struct arguments {
    const char *socket, *tasks;
    int streams[STREAM_CONNECTIONS_MAX], key; /* descriptors; key: 0 without one */
    unsigned stream_count, fill_threads;
    uint64_t fill_rate;
    int64_t stall_ms, total_ms;
};

struct receive {
    struct guard guard;
    struct cache cache;
    struct receiver receiver;
    struct fetch fetch;
    struct fill fill;
    struct lazy lazy;
    int epoll, signals, notify;
    char input; /* only its address counts */
    uint64_t rounds_reported, last_reported;
    bool restored_reported, fetching;
    int64_t restored_ms, stall_ms, total_ms;
    int64_t look_ms; /* when it is looked whether the node runs; 0: not at all */
    size_t line_length;
    char line[64];
};

static _Noreturn void usage(void)
{
    fputs("usage: wherry-pager receive --socket PATH --tasks FILE --stream FD [--stream FD ...] [--key FD]\n"
          "       [--fetch-stall SECONDS] [--fetch-total SECONDS]\n", stderr);
    exit(2);
}

static uint64_t number_of(const char *text, uint64_t most)
{
    char *end;
    uint64_t number;

    errno = 0;
    number = strtoull(text, &end, 10);
    if (errno || end == text || *end || number > most)
        usage();
    return number;
}

static void parse(struct arguments *arguments, int argc, char **argv)
{
    static const struct option options[] = {{"socket", required_argument, NULL, 's'},
                                            {"tasks", required_argument, NULL, 't'},
                                            {"stream", required_argument, NULL, 'c'},
                                            {"key", required_argument, NULL, 'k'},
                                            {"fill-rate", required_argument, NULL, 'r'},
                                            {"fill-threads", required_argument, NULL, 'n'},
                                            {"fetch-stall", required_argument, NULL, 'l'},
                                            {"fetch-total", required_argument, NULL, 'a'},
                                            {0}};
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
        if (option == 's')
            arguments->socket = optarg;
        else if (option == 't')
            arguments->tasks = optarg;
        else if (option == 'c' && arguments->stream_count < STREAM_CONNECTIONS_MAX)
            arguments->streams[arguments->stream_count++] = (int)number_of(optarg, 1 << 20);
        else if (option == 'k')
            arguments->key = (int)number_of(optarg, 1 << 20);
        else if (option == 'r')
            arguments->fill_rate = number_of(optarg, UINT64_C(1) << 40);
        else if (option == 'n')
            arguments->fill_threads = (unsigned)number_of(optarg, FILL_THREADS_MAX);
        else if (option == 'l')
            arguments->stall_ms = (int64_t)number_of(optarg, INT32_MAX) * 1000;
        else if (option == 'a')
            arguments->total_ms = (int64_t)number_of(optarg, INT32_MAX) * 1000;
        else
            usage();
    }
    if (optind != argc || !arguments->socket || !arguments->tasks || !arguments->stream_count)
        usage();
}

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int failed(const char *what, int error)
{
    fprintf(stderr, "wherry-pager receive: cannot %s: %s\n", what, strerror(-error));
    return 1;
}

static int watch(const struct receive *receive, int fd, const void *pointer)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = (void *)(uintptr_t)pointer};

    return epoll_ctl(receive->epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

/* No process needs us yet. */
static bool may_end(const struct receive *receive)
{
    return !receive->lazy.count && !receive->lazy.expected;
}

static int on_receiver_event(struct receive *receive)
{
    struct receiver_news news;
    int error = 0;

    receiver_news(&receive->receiver, &news);
    while (receive->rounds_reported < news.rounds)
        printf("round %" PRIu64 "\n", ++receive->rounds_reported);
    if (news.last && !receive->last_reported) {
        receive->last_reported = news.last;
        receive->fetching = news.fetching;
        error = lazy_complete(&receive->lazy, news.passes);
        printf("last %" PRIu64 "\n", news.last);
    }
    if (error < 0)
        return failed("keep the pages of a process", error);
    if (news.failure)
        fprintf(stderr, "wherry-pager receive: %s\n", news.reason);
    return news.failure ? news.failure : CONTINUE;
}

static int on_fill_event(struct receive *receive)
{
    eventfd_t value;
    int error;

    eventfd_read(receive->notify, &value);
    receive->lazy.reap = true;
    if (receive->fill.failure)
        return failed("fill memory", receive->fill.failure);
    if (atomic_exchange(&receive->fetch.answered, false) && (error = lazy_answer(&receive->lazy)) < 0)
        return failed("follow a process", error);
    return receive->last_reported && !receive->fetching ? CONTINUE : on_receiver_event(receive);
}

/* CONTINUE or an exit code. */
static int look_at_source(struct receive *receive)
{
    int error = fetch_look(&receive->fetch, now_ms(), receive->stall_ms, receive->total_ms);

    if (!error)
        return CONTINUE;
    fprintf(stderr, "wherry-pager receive: %" PRIu64 " pages have not come: %s for %" PRId64 " s\n", receive->fetch.left,
            error == -ETIMEDOUT ? "none came" : "this lasts",
            (error == -ETIMEDOUT ? receive->stall_ms : receive->total_ms) / 1000);
    return TOO_LATE;
}

/* Until then the node loses nothing with us, so in a host without memory we are the first to be killed, if we may. */
static void thawed(struct receive *receive)
{
    if (receive->lazy.thawed)
        return;
    oom_protect();
    lazy_thawed(&receive->lazy);
}

/*
 * Until the commit it is frozen, however long that takes: it needs no filling yet, and others of the host need the
 * memory.
 */
static void look_whether_it_runs(struct receive *receive)
{
    if (!receive->lazy.restored || node_group_stands(receive->guard.tasks))
        receive->look_ms = now_ms() + THAW_MS;
    else
        thawed(receive);
}

/* The restored processes stand: nobody waits for us meanwhile. */
static int fill_objects(struct receive *receive)
{
    struct object_totals totals;
    int64_t began = now_ms();
    char why[160] = "not all of it has come";

    if (!receive->lazy.complete || objects_fill(&receive->cache, receive->guard.tasks, &totals, why, sizeof(why))) {
        fprintf(stderr, "wherry-pager receive: %s\n", why);
        return 1;
    }
    printf("objects %zu %" PRIu64 " %" PRId64 "\n", totals.objects, totals.bytes, now_ms() - began);
    receive->look_ms = now_ms() + THAW_MS;
    return CONTINUE;
}

static int on_command(struct receive *receive)
{
    if (!strcmp(receive->line, "objects"))
        return fill_objects(receive);
    if (strcmp(receive->line, "thawed")) {
        fprintf(stderr, "wherry-pager receive: not understood: %s\n", receive->line);
        return CONTINUE;
    }
    thawed(receive);
    return CONTINUE;
}

static int on_input(struct receive *receive)
{
    char bytes[64];
    ssize_t got = read(0, bytes, sizeof(bytes));
    int code = CONTINUE;

    if (got <= 0) {
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            return CONTINUE;
        epoll_ctl(receive->epoll, EPOLL_CTL_DEL, 0, NULL);
        if (may_end(receive))
            return 1;
        receive->look_ms = now_ms(); /* nobody is left to say when */
        return CONTINUE;
    }
    for (ssize_t i = 0; i < got && code == CONTINUE; i++) {
        if (bytes[i] == '\n') {
            receive->line[receive->line_length] = '\0';
            receive->line_length = 0;
            code = on_command(receive);
        } else if (receive->line_length < sizeof(receive->line) - 1) {
            receive->line[receive->line_length++] = bytes[i];
        }
    }
    return code;
}

static int on_signal(struct receive *receive)
{
    struct signalfd_siginfo signal;

    if (read(receive->signals, &signal, sizeof(signal)) < 0)
        return CONTINUE;
    return may_end(receive) ? 0 : CONTINUE;
}

static int on_criu_event(struct receive *receive)
{
    int error = lazy_read(&receive->lazy);

    if (error < 0)
        return failed("restore", error);
    if (receive->lazy.restored && !receive->restored_reported) {
        receive->restored_reported = true;
        receive->restored_ms = now_ms();
        printf("restored %u\n", receive->lazy.count);
    }
    return CONTINUE;
}

/* CONTINUE or an exit code. */
static int dispatch(struct receive *receive, void *pointer)
{
    int error;

    if (pointer == &receive->notify)
        return on_fill_event(receive);
    if (pointer == &receive->input)
        return on_input(receive);
    if (pointer == &receive->signals)
        return on_signal(receive);
    if (pointer == &receive->lazy.connection)
        return on_criu_event(receive);
    if (pointer == &receive->lazy.listener) {
        error = lazy_accept(&receive->lazy);
        return error < 0 ? failed("accept a connection", error) : CONTINUE;
    }
    if (pointer == &receive->guard) {
        error = guard_again(&receive->guard);
        if (!error)
            error = watch(receive, receive->guard.guard, &receive->guard);
        return error < 0 ? failed("start a guard", error) : CONTINUE;
    }
    error = lazy_serve(&receive->lazy, pointer);
    return error < 0 ? failed("follow a process", error) : CONTINUE;
}

/* Nanoseconds until something is due; -1: never. */
static int64_t time_left(const struct receive *receive)
{
    int64_t due = lazy_timeout(&receive->lazy), look = FETCH_LOOK_MS * INT64_C(1000000), thaw;

    if (receive->fetching && receive->fetch.left)
        due = due < 0 || look < due ? look : due;
    if (!receive->look_ms || receive->lazy.thawed)
        return due;
    thaw = (receive->look_ms - now_ms()) * 1000000;
    thaw = thaw < 0 ? 0 : thaw;
    return due < 0 || thaw < due ? thaw : due;
}

static int wait_for(struct receive *receive, struct epoll_event *events)
{
    int64_t ns = time_left(receive);
    struct timespec time = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};

    return epoll_pwait2(receive->epoll, events, EVENTS, ns < 0 ? NULL : &time, NULL);
}

/* A process that an event speaks of exists until lazy_reap(). */
static int serve(struct receive *receive)
{
    struct epoll_event events[EVENTS];
    int code = CONTINUE;

    while (code == CONTINUE) {
        int count = wait_for(receive, events), error;

        if (count < 0 && errno != EINTR)
            return failed("wait", -errno);
        for (int i = 0; i < count && code == CONTINUE; i++)
            code = dispatch(receive, events[i].data.ptr);
        if (receive->look_ms && !receive->lazy.thawed && now_ms() >= receive->look_ms)
            look_whether_it_runs(receive);
        if (code == CONTINUE && receive->fetching && receive->lazy.thawed)
            code = look_at_source(receive);
        if (code == CONTINUE && (error = lazy_due(&receive->lazy, count == 0)) < 0)
            return failed("follow a process", error);
        if (code == CONTINUE && receive->lazy.reap && lazy_reap(&receive->lazy))
            code = 0;
    }
    return code;
}

static void raise_limit(void)
{
    struct rlimit limit;

    if (!getrlimit(RLIMIT_NOFILE, &limit)) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* Signals are blocked before there are threads; the guard is cloned before there are threads and descriptors. */
static int prepare(struct receive *receive, const struct arguments *arguments)
{
    sigset_t set;
    int error;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    raise_limit();
    error = guard_start(&receive->guard, arguments->tasks);
    if (error < 0)
        return failed("start a guard", error);
    oom_volunteer();
    receive->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    receive->notify = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    receive->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (receive->signals < 0 || receive->notify < 0 || receive->epoll < 0 || cache_open(&receive->cache) < 0)
        return failed("begin", -errno);
    return 0;
}

static int listen_at(struct receive *receive, const char *path)
{
    struct lazy *lazy = &receive->lazy;
    int error;

    lazy->epoll = receive->epoll;
    lazy->cache = &receive->cache;
    lazy->fill = &receive->fill;
    lazy->guard = &receive->guard;
    error = lazy_open(lazy, path);
    if (error < 0)
        return failed("listen for CRIU", error);
    return 0;
}

static int start_receiver(struct receive *receive, const struct arguments *arguments)
{
    uint8_t key[FRAME_KEY];
    int error = arguments->key ? key_read(arguments->key, key) : 0;

    if (!error)
        error = receiver_start(&receive->receiver, &receive->cache, &receive->fetch, arguments->streams,
                               arguments->stream_count, receive->notify, arguments->key ? key : NULL);
    explicit_bzero(key, sizeof(key));
    return error;
}

static int start(struct receive *receive, const struct arguments *arguments)
{
    int error = listen_at(receive, arguments->socket);

    if (error)
        return error;
    if (watch(receive, receive->signals, &receive->signals) < 0 ||
        watch(receive, receive->notify, &receive->notify) < 0 ||
        watch(receive, receive->guard.guard, &receive->guard) < 0)
        return failed("wait", -errno);
    error = watch(receive, 0, &receive->input);
    if (error < 0)
        return failed("watch standard input", error);
    fetch_open(&receive->fetch, receive->notify);
    receive->stall_ms = arguments->stall_ms;
    receive->total_ms = arguments->total_ms;
    error = fill_start(&receive->fill, &receive->fetch, arguments->fill_threads, arguments->fill_rate, receive->notify);
    if (!error)
        error = start_receiver(receive, arguments);
    if (error < 0)
        return failed("start threads", error);
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), -20); /* a thread that waits for its page waits for this one */
    puts("ready");
    return 0;
}

static void finish(struct receive *receive)
{
    struct fetch *fetch = &receive->fetch;
    int64_t complete = fetch->complete_ms ? fetch->complete_ms - receive->restored_ms : now_ms() - receive->restored_ms;

    guard_disarm(&receive->guard);
    if (receive->fetching)
        printf("fetched %" PRIu64 " %" PRIu64 " %" PRId64 "\n", fetch->demanded * STREAM_PAGE,
               fetch->others * STREAM_PAGE, complete > 0 ? complete : 0);
    printf("filled %" PRIu64 " %" PRId64 "\n", receive->fill.bytes, now_ms() - receive->restored_ms);
    guard_end(&receive->guard);
    fetch_end(fetch);
    fill_end(&receive->fill);
    receiver_join(&receive->receiver);
    fetch_close(fetch);
    cache_close(&receive->cache);
}

int receive_run(int argc, char **argv)
{
    static struct receive receive;
    struct arguments arguments = {
        .fill_threads = FILL_THREADS, .stall_ms = FETCH_STALL_S * 1000, .total_ms = FETCH_TOTAL_S * 1000};
    int code;

    parse(&arguments, argc, argv);
    code = prepare(&receive, &arguments);
    if (!code)
        code = start(&receive, &arguments);
    if (!code)
        code = serve(&receive);
    lazy_unlink(&receive.lazy);
    if (!code && receive.lazy.restored) {
        finish(&receive);
        return 0;
    }
    if (may_end(&receive) && receive.guard.pid > 0)
        guard_end(&receive.guard);
    fflush(NULL);
    _exit(code); /* other threads run still; an armed guard kills the node */
}
