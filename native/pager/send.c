/*
 * The source's side of a move's memory.
 *
 *   wherry-pager send [--tracking NAME] --tasks FILE --hidden FILE --stream FD [--stream FD ...]
 *                     [--key FD] [--compress]
 *   wherry-pager send [--tracking NAME] --probe
 *                                              prints the NAME that would be used, then why each better one is not
 *
 * NAME is how writes are tracked (tracking.h), without it the best way that the kernel has; exit 1 with the reason where
 * it has none.
 *
 * FILE of --tasks is the cgroup.procs of the node, each FD a connected socket to `wherry-pager receive` (stream.h). With
 * --key all is sealed by the 32 bytes that are read from there (frame_seal.h); --compress is for slow links.
 * It is led by lines on standard input, each answered by one on standard output:
 *
 *                <--- ready PROCESSES BYTES            all are tracked; or exit 1 with the reason
 *   round --->   <--- round N SENT_BYTES PAGES ZERO_PAGES DIRTY_BYTES MILLISECONDS
 *                                                      DIRTY_BYTES are written, or not tracked, by the end of the round;
 *                                                      -1 where that is not known before the next one
 *   last  --->   <--- hidden COUNT                     the file of --hidden (skipped_mappings.h) is there
 *                <--- last SENT_BYTES PAGES ZERO_PAGES MILLISECONDS
 *                                                      the node is frozen; the destination has all of its memory
 *   post-copy -> <--- hidden COUNT
 *                <--- last SENT_BYTES PAGES ZERO_PAGES MILLISECONDS
 *                                                      the node is frozen; the destination has the list of missing
 *                                                      pages, and gets each that it asks for
 *   thawed --->                                        the node runs there: the rest is sent too, and exit 0 when the
 *                                                      destination has all. EOF counts as this line
 *   end, EOF --> exit 0
 *
 * After `last` a node may be thawed, and another round be sent; never after `post-copy`, unless the destination's copy is
 * killed first. Exit 3: a connection is lost. However this program ends, the kernel takes the protection away with its
 * descriptors, and the processes continue.
 */
#include "send.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "frame_seal.h"
#include "skipped_mappings.h"
#include "rounds.h"
#include "stream.h"
#include "tracking.h"

enum { FAILED = 1, WRONG_USAGE = 2, CONNECTION_LOST = 3 };

struct sending {
    const char *tasks, *skip_list, *tracking;
    int streams[STREAM_CONNECTIONS_MAX], count, key; /* descriptors; key: 0 without one */
    bool compresses;
    struct processes processes;
    uint64_t number; /* of the last round */
};

static int report_error(const char *what, int error)
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
static int report_send_error(const char *what, int error)
{
    int lost = error == -EPIPE || error == -ECONNRESET || error == -EPROTO || error == -ETIMEDOUT || error == -ENOTCONN ||
               error == -EHOSTUNREACH || error == -ENETUNREACH || error == -ENETDOWN || error == -ECONNABORTED;

    report_error(lost ? "a connection to the destination is lost" : what, error);
    return lost ? CONNECTION_LOST : FAILED;
}

static int report_ready(struct sending *sending)
{
    uint64_t bytes;
    size_t count = 0;
    int error = rounds_measure_tracked(&sending->processes, &bytes);

    if (error)
        return report_error("the memory cannot be measured", error);
    for (size_t i = 0; i < sending->processes.count; i++)
        count += tracker_follows(&sending->processes.list[i]);
    printf("ready %zu %" PRIu64 "\n", count, bytes);
    return 0;
}

static int send_round(struct sending *sending)
{
    struct sender_totals totals;
    uint64_t unsent = 0;
    bool is_counted = true;
    double began = milliseconds();
    int error = rounds_send(&sending->processes, sending->tasks, ++sending->number, &totals);

    if (error)
        return report_send_error("the round was not sent", error);
    for (size_t i = 0; i < sending->processes.count; i++) /* else only the next round finds out */
        is_counted = is_counted && tracker_scans(&sending->processes.list[i]);
    if ((error = rounds_look(&sending->processes, sending->tasks)) ||
        (is_counted && (error = rounds_measure_unsent(&sending->processes, &unsent))))
        return report_error("the memory cannot be measured", error);
    printf("round %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %.3f\n", sending->number, totals.bytes,
           totals.pages, totals.zero_pages, is_counted ? (int64_t)unsent : -1, milliseconds() - began);
    return 0;
}

/* With post-copy, which pages are left; else the pages. */
static int send_last(struct sending *sending, struct later *later)
{
    struct sender_totals totals;
    double began = milliseconds();
    size_t count;
    int error = rounds_look(&sending->processes, sending->tasks);

    if (!error)
        error = skipped_mappings_write(sending->skip_list, &sending->processes, &count);
    if (error)
        return report_error(sending->skip_list, error);
    printf("hidden %zu\n", count);
    fflush(stdout);
    if ((error = rounds_send_last(&sending->processes, ++sending->number, later, &totals)))
        return report_send_error("the last pass was not sent", error);
    printf("last %" PRIu64 " %" PRIu64 " %" PRIu64 " %.3f\n", totals.bytes, totals.pages, totals.zero_pages,
           milliseconds() - began);
    return 0;
}

static int run_post_copy(struct sending *sending)
{
    struct later later = {0};
    int result = send_last(sending, &later), error;

    if (!result && !fflush(stdout) && (error = later_serve(&later, 0)))
        result = report_send_error(error == -ESRCH ? "a page of the node is gone" : "the rest was not sent", error);
    later_free(&later);
    return result;
}

static int command_loop(struct sending *sending)
{
    char line[64];
    int result = report_ready(sending);

    while (!result && !fflush(stdout) && fgets(line, sizeof(line), stdin)) {
        if (!strcmp(line, "round\n"))
            result = send_round(sending);
        else if (!strcmp(line, "last\n"))
            result = send_last(sending, NULL);
        else if (!strcmp(line, "post-copy\n"))
            return run_post_copy(sending);
        else if (!strcmp(line, "end\n"))
            break;
        else
            result = report_error("standard input", -EINVAL);
    }
    return result;
}

static int usage(void)
{
    fputs("usage: wherry-pager send [--tracking NAME] --tasks FILE --hidden FILE --stream FD [--stream FD ...]\n"
          "       [--key FD] [--compress] | --probe\n", stderr);
    return WRONG_USAGE;
}

/* An open descriptor, or -1. */
static int descriptor(const char *text)
{
    char *end;
    long number = strtol(text, &end, 10);

    return *end || end == text || number < 0 || fcntl((int)number, F_GETFD) < 0 ? -1 : (int)number;
}

static int add_stream(struct sending *sending, const char *text)
{
    int number = descriptor(text);

    if (number < 0 || sending->count == STREAM_CONNECTIONS_MAX)
        return -EINVAL;
    sending->streams[sending->count++] = number;
    return 0;
}

static int begin_sending(const struct sending *sending)
{
    uint8_t key[FRAME_KEY];
    int error = sending->key ? key_read(sending->key, key) : 0;

    if (!error)
        error = sender_start(sending->streams, sending->count, sending->key ? key : NULL, sending->compresses);
    explicit_bzero(key, sizeof(key));
    return error;
}

static int send_all(struct sending *sending)
{
    char why[512];
    enum tracking tracking;
    int error, result = tracking_choose(sending->tracking, &tracking);

    if (result)
        return result;
    tracker_use(tracking);
    if ((error = rounds_begin(&sending->processes, sending->tasks, why, sizeof(why)))) {
        fprintf(stderr, "wherry-pager: %s\n", why);
        return FAILED;
    }
    if ((error = begin_sending(sending)))
        return report_error("the connections cannot be served", error);
    result = command_loop(sending);
    if (result) { /* threads may still send, and use memory that would be freed */
        fflush(NULL);
        _exit(result);
    }
    processes_free(&sending->processes);
    return result;
}

int send_run(int argc, char **argv)
{
    static const struct option options[] = {{"tasks", required_argument, NULL, 't'},
                                            {"hidden", required_argument, NULL, 'h'},
                                            {"stream", required_argument, NULL, 's'},
                                            {"tracking", required_argument, NULL, 'r'},
                                            {"key", required_argument, NULL, 'k'},
                                            {"compress", no_argument, NULL, 'c'},
                                            {"probe", no_argument, NULL, 'p'},
                                            {0}};
    static struct sending sending;
    bool is_probe = false;
    int option;

    signal(SIGPIPE, SIG_IGN);
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'p')
            is_probe = true;
        else if (option == 'r')
            sending.tracking = optarg;
        else if (option == 't')
            sending.tasks = optarg;
        else if (option == 'h')
            sending.skip_list = optarg;
        else if (option == 'c')
            sending.compresses = true;
        else if (option == 'k' && (sending.key = descriptor(optarg)) > 0)
            continue;
        else if (option != 's' || add_stream(&sending, optarg))
            return usage();
    }
    if (is_probe && optind == argc)
        return tracking_tell(sending.tracking);
    if (optind != argc || !sending.tasks || !sending.skip_list || !sending.count)
        return usage();
    return send_all(&sending);
}
