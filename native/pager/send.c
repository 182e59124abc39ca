/*
 * The source's side of a move's memory.
 *
 *   wherry-pager send --tasks FILE --hidden FILE --stream FD [--stream FD ...]
 *   wherry-pager send --probe                  prints `wp-async`, or exits 1 with the reason
 *
 * FILE of --tasks is the cgroup.procs of the node, each FD a connected socket to `wherry-pager receive` (stream.h). It is
 * led by lines on standard input, each answered by one on standard output:
 *
 *                <--- ready PROCESSES BYTES            all are tracked; or exit 1 with the reason
 *   round --->   <--- round N SENT_BYTES PAGES ZERO_PAGES DIRTY_BYTES MILLISECONDS
 *                                                      DIRTY_BYTES are written, or not tracked, by the end of the round
 *   last  --->   <--- hidden COUNT                     the file of --hidden (hidden.h) is there
 *                <--- last SENT_BYTES PAGES ZERO_PAGES MILLISECONDS
 *                                                      the node is frozen; the destination has all of its memory
 *   end, EOF --> exit 0
 *
 * After `last` a node may be thawed, and another round be sent. Exit 3: a connection is lost. However this program ends,
 * the kernel takes the protection away with its descriptors, and the processes go on.
 */
#include "send.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hidden.h"
#include "inject.h"
#include "rounds.h"
#include "stream.h"
#include "wp_async.h"

enum { FAILED = 1, WRONG_USAGE = 2, CONNECTION_LOST = 3 };

struct sending {
    const char *tasks, *hidden;
    int streams[STREAM_CONNECTIONS_MAX], count;
    struct processes processes;
    uint64_t number; /* of the last round */
};

static int say_why(const char *what, int error)
{
    fprintf(stderr, "wherry-pager: %s: %s\n", what, strerror(-error));
    return FAILED;
}

static double milliseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* Errors that come from a socket only. */
static int say_failed(const char *what, int error)
{
    int lost = error == -EPIPE || error == -ECONNRESET || error == -EPROTO || error == -ETIMEDOUT || error == -ENOTCONN ||
               error == -EHOSTUNREACH || error == -ENETUNREACH || error == -ENETDOWN || error == -ECONNABORTED;

    say_why(lost ? "a connection to the destination is lost" : what, error);
    return lost ? CONNECTION_LOST : FAILED;
}

static int say_ready(struct sending *sending)
{
    uint64_t bytes;
    size_t count = 0;
    int error = rounds_measure_tracked(&sending->processes, &bytes);

    if (error)
        return say_why("the memory cannot be measured", error);
    for (size_t i = 0; i < sending->processes.count; i++)
        count += sending->processes.list[i].userfaultfd >= 0;
    printf("ready %zu %" PRIu64 "\n", count, bytes);
    return 0;
}

static int send_round(struct sending *sending)
{
    struct sender_totals totals;
    uint64_t unsent;
    double began = milliseconds();
    int error = rounds_send(&sending->processes, sending->tasks, ++sending->number, &totals);

    if (error)
        return say_failed("the round was not sent", error);
    if ((error = rounds_look(&sending->processes, sending->tasks)) ||
        (error = rounds_measure_unsent(&sending->processes, &unsent)))
        return say_why("the memory cannot be measured", error);
    printf("round %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %.3f\n", sending->number, totals.bytes,
           totals.pages, totals.zero_pages, unsent, milliseconds() - began);
    return 0;
}

static int send_last(struct sending *sending)
{
    struct sender_totals totals;
    double began = milliseconds();
    size_t count;
    int error = rounds_look(&sending->processes, sending->tasks);

    if (!error)
        error = hidden_write(sending->hidden, &sending->processes, &count);
    if (error)
        return say_why(sending->hidden, error);
    printf("hidden %zu\n", count);
    fflush(stdout);
    if ((error = rounds_send_last(&sending->processes, ++sending->number, &totals)))
        return say_failed("the last pass was not sent", error);
    printf("last %" PRIu64 " %" PRIu64 " %" PRIu64 " %.3f\n", totals.bytes, totals.pages, totals.zero_pages,
           milliseconds() - began);
    return 0;
}

static int converse(struct sending *sending)
{
    char line[64];
    int result = say_ready(sending);

    while (!result && !fflush(stdout) && fgets(line, sizeof(line), stdin)) {
        if (!strcmp(line, "round\n"))
            result = send_round(sending);
        else if (!strcmp(line, "last\n"))
            result = send_last(sending);
        else if (!strcmp(line, "end\n"))
            break;
        else
            result = say_why("standard input", -EINVAL);
    }
    return result;
}

/* Whether a scan finds exactly the page that was written. 0 or negative errno. */
static int try_tracking(int userfaultfd, int pagemap, char *pages)
{
    struct page_region found[4];
    struct uffdio_register request = {.range = {(uintptr_t)pages, 4 * STREAM_PAGE}, .mode = UFFDIO_REGISTER_MODE_WP};
    struct pm_scan_arg scan = {.size = sizeof(scan),
                               .flags = PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
                               .start = (uintptr_t)pages,
                               .end = (uintptr_t)pages + 4 * STREAM_PAGE,
                               .vec = (uintptr_t)found,
                               .vec_len = 4,
                               .category_mask = PAGE_IS_WRITTEN,
                               .category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                               .return_mask = PAGE_IS_WRITTEN};

    memset(pages, 1, 4 * STREAM_PAGE);
    if (ioctl(userfaultfd, UFFDIO_REGISTER, &request) || ioctl(pagemap, PAGEMAP_SCAN, &scan) < 0)
        return -errno;
    pages[2 * STREAM_PAGE] = 2;
    if (ioctl(pagemap, PAGEMAP_SCAN, &scan) != 1 || found[0].start != scan.start + 2 * STREAM_PAGE ||
        found[0].end != scan.start + 3 * STREAM_PAGE)
        return -EOPNOTSUPP;
    return 0;
}

static int probe(void)
{
    int userfaultfd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY), error;
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    char *pages = mmap(NULL, 4 * STREAM_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (userfaultfd < 0 || pagemap < 0 || pages == MAP_FAILED)
        return say_why("userfaultfd", -errno);
    if ((error = userfaultfd_set_up(userfaultfd)))
        return say_why("UFFD_FEATURE_WP_ASYNC (Linux 6.7)", error);
    if ((error = try_tracking(userfaultfd, pagemap, pages)))
        return say_why("PAGEMAP_SCAN (Linux 6.7)", error);
    puts("wp-async");
    return 0;
}

static int usage(void)
{
    fputs("usage: wherry-pager send --tasks FILE --hidden FILE --stream FD [--stream FD ...] | --probe\n", stderr);
    return WRONG_USAGE;
}

static int add_stream(struct sending *sending, const char *text)
{
    char *end;
    long number = strtol(text, &end, 10);

    if (*end || end == text || number < 0 || sending->count == STREAM_CONNECTIONS_MAX || fcntl((int)number, F_GETFD) < 0)
        return -EINVAL;
    sending->streams[sending->count++] = (int)number;
    return 0;
}

static int send_all(struct sending *sending)
{
    char why[512];
    int error = rounds_begin(&sending->processes, sending->tasks, why, sizeof(why)), result;

    if (error) {
        fprintf(stderr, "wherry-pager: %s\n", why);
        return FAILED;
    }
    if ((error = sender_start(sending->streams, sending->count)))
        return say_why("the connections cannot be served", error);
    result = converse(sending);
    processes_free(&sending->processes);
    return result;
}

int send_run(int argc, char **argv)
{
    static const struct option options[] = {{"tasks", required_argument, NULL, 't'},
                                            {"hidden", required_argument, NULL, 'h'},
                                            {"stream", required_argument, NULL, 's'},
                                            {"probe", no_argument, NULL, 'p'},
                                            {0}};
    static struct sending sending;
    int option;

    signal(SIGPIPE, SIG_IGN);
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'p')
            return probe();
        if (option == 't')
            sending.tasks = optarg;
        else if (option == 'h')
            sending.hidden = optarg;
        else if (option != 's' || add_stream(&sending, optarg))
            return usage();
    }
    if (optind != argc || !sending.tasks || !sending.hidden || !sending.count)
        return usage();
    return send_all(&sending);
}
