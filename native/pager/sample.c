/*
 * How much a node writes, for a forecast of its move.
 *
 *   wherry-pager sample [--tracking NAME] --tasks FILE --seconds SECONDS
 *
 * FILE is the cgroup.procs of the node. All its memory is protected once, and looked at some times until SECONDS have gone
 * by; without write protection (tracking.h) some of its pages are read instead (sample_pages.h). On standard output:
 *
 *   present BYTES                 pageable memory with contents, and objects (objects.h), at the beginning
 *   written MILLISECONDS BYTES    of the former, and of new memory, written within that time; the last is after SECONDS
 *
 * Exit 1 with the reason when a process cannot be tracked. The processes run all the time, and are left as they were:
 * however this program ends, the kernel takes the protection away with its descriptors. A move must not begin meanwhile,
 * as it would take this program's protection for its own: the caller holds a lock.
 */
#include "sample.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rounds.h"
#include "sample_pages.h"
#include "tracking.h"

enum { FAILED = 1, WRONG_USAGE = 2 };

/* A node that writes the same memory again and again has written it all early: the first looks tell. */
static const double looks[] = {1.0 / 64, 1.0 / 16, 1.0 / 4, 1.0};

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void sleep_until(double time)
{
    struct timespec until = {.tv_sec = (time_t)time, .tv_nsec = (long)((time - (double)(time_t)time) * 1e9)};

    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

static int pass_over(void *context, uint64_t start, uint64_t end, uint64_t categories)
{
    (void)context, (void)start, (void)end, (void)categories;
    return 0;
}

static int protect_all(const struct processes *processes)
{
    int error = 0;

    for (size_t i = 0; i < processes->count && !error; i++) {
        if (processes->list[i].userfaultfd >= 0)
            error = tracker_take_written(&processes->list[i], pass_over, NULL);
        if (error == -ESRCH)
            error = 0; /* it has just ended */
    }
    return error;
}

static int report_error(const char *what, int error)
{
    fprintf(stderr, "wherry-pager: %s: %s\n", what, strerror(-error));
    return FAILED;
}

static int begin(const struct processes *processes, struct sample_pages *pages, uint64_t *bytes)
{
    int error;

    if (tracker_used() == TRACKING_WP_ASYNC)
        return (error = protect_all(processes)) ? error : rounds_measure_tracked(processes, bytes);
    error = sample_pages_begin(pages, processes);
    *bytes = pages->present;
    return error;
}

static int measure_written(struct processes *processes, struct sample_pages *pages, uint64_t *bytes)
{
    return tracker_used() == TRACKING_WP_ASYNC ? rounds_measure_unsent(processes, bytes)
                                               : sample_pages_look(pages, processes, bytes);
}

static int watch(struct processes *processes, struct sample_pages *pages, const char *tasks, double seconds)
{
    uint64_t bytes;
    double began = now();
    int error = begin(processes, pages, &bytes);

    if (error)
        return report_error("the memory cannot be measured", error);
    if (tracker_used() != TRACKING_WP_ASYNC)
        began = now();
    printf("present %" PRIu64 "\n", bytes);
    for (size_t i = 0; i < sizeof(looks) / sizeof(*looks); i++) {
        double looked;

        sleep_until(began + looks[i] * seconds);
        looked = now();
        if ((error = rounds_look(processes, tasks)) || (error = measure_written(processes, pages, &bytes)))
            return report_error("the memory cannot be measured", error);
        printf("written %.3f %" PRIu64 "\n", (looked - began) * 1e3, bytes);
    }
    return 0;
}

static int usage(void)
{
    fputs("usage: wherry-pager sample [--tracking NAME] --tasks FILE --seconds SECONDS\n", stderr);
    return WRONG_USAGE;
}

int sample_run(int argc, char **argv)
{
    static const struct option options[] = {
        {"tasks", required_argument, NULL, 't'},
        {"seconds", required_argument, NULL, 's'},
        {"tracking", required_argument, NULL, 'r'},
        {0}};
    struct processes processes = {0};
    struct sample_pages pages = {0};
    const char *tasks = NULL, *name = NULL;
    enum tracking tracking;
    char why[512], *end = "";
    double seconds = 0;
    int option, error, result;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 't')
            tasks = optarg;
        else if (option == 's')
            seconds = strtod(optarg, &end);
        else if (option == 'r')
            name = optarg;
        else
            return usage();
    }
    if (optind != argc || !tasks || *end || !(seconds > 0 && seconds <= 60))
        return usage();
    if ((result = tracking_choose(name, &tracking)))
        return result;
    tracker_use(tracking);
    if ((error = rounds_begin(&processes, tasks, why, sizeof(why)))) {
        fprintf(stderr, "wherry-pager: %s\n", why);
        return FAILED;
    }
    result = watch(&processes, &pages, tasks, seconds);
    sample_pages_free(&pages);
    processes_free(&processes);
    return result;
}
