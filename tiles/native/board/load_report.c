/* See load_report.h. */
#include "load_report.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define REPORT_MS 500

/* utime + stime of /proc/PID/stat, proc(5): fields 14 and 15; the second field may hold anything but its last ')'. */
static uint64_t cpu_time(int pid)
{
    char path[32], text[1024], *rest;
    unsigned long user = 0, system = 0;
    size_t count;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    file = pid ? fopen(path, "re") : NULL;
    if (!file)
        return 0;
    count = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[count] = 0;
    rest = strrchr(text, ')');
    if (!rest || sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
        return 0;
    return (uint64_t)(user + system) * (1000000000u / (uint64_t)sysconf(_SC_CLK_TCK));
}

static void measure(struct shared_memory *shared, struct report *report)
{
    cpu_set_t set;

    report->cpus = sched_getaffinity(0, sizeof(set), &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
    for (uint32_t tile = 0; tile < shared->tile_count; tile++)
        report->cpu[tile] = shared_is_here(shared, tile) ? cpu_time(shared->tiles[tile].pid) : 0;
    for (uint32_t from = 0; from < PROCESS_MAX; from++)
        for (uint32_t to = 0; to < PROCESS_MAX; to++)
            report->said[from][to] = atomic_load(&shared->said[from][to]);
}

void report_serve(struct reports *reports)
{
    struct net *net = reports->net;
    struct report *mine = &reports->reports[net->host];

    if (net->host == 0 || shared_now() - reports->reported <= REPORT_MS * 1000000ll)
        return;
    measure(net->shared, mine);
    net_send(net, 0, FRAME_REPORT, 0, mine, sizeof(*mine));
    reports->reported = shared_now();
}

void report_format(struct reports *reports, char text[REPORT_ROOM])
{
    const struct net *net = reports->net;
    size_t at = 0;

    measure(net->shared, &reports->reports[0]);
    at += (size_t)snprintf(text, REPORT_ROOM, "{\"event\": \"loads\", \"cpus\": [");
    for (uint32_t host = 0; host < net->hosts; host++)
        at += (size_t)snprintf(text + at, REPORT_ROOM - at, "%s%u", host ? ", " : "", reports->reports[host].cpus);
    at += (size_t)snprintf(text + at, REPORT_ROOM - at, "], \"cpu_ns\": [");
    for (uint32_t tile = 0; tile < net->shared->tile_count; tile++)
        at += (size_t)snprintf(text + at, REPORT_ROOM - at, "%s%" PRIu64, tile ? ", " : "",
                               reports->reports[net_host_of_tile(net, tile)].cpu[tile]);
    at += (size_t)snprintf(text + at, REPORT_ROOM - at, "], \"said\": [");
    for (uint32_t from = 1, first = 1; from < PROCESS_MAX; from++)
        for (uint32_t to = 1; to < PROCESS_MAX; to++) {
            uint32_t count = 0;

            for (uint32_t host = 0; host < net->hosts; host++)
                count += reports->reports[host].said[from][to];
            if (!count)
                continue;
            at += (size_t)snprintf(text + at, REPORT_ROOM - at, "%s[%u, %u, %u]", first ? "" : ", ", from, to, count);
            first = 0;
        }
    snprintf(text + at, REPORT_ROOM - at, "]}");
}

static void on_report(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    struct reports *reports = context;

    if (reports->net->host == 0 && head->size == sizeof(struct report))
        memcpy(&reports->reports[from], payload, sizeof(struct report));
}

void report_init(struct reports *reports, struct net *net)
{
    reports->net = net;
    net_on_frame(net, FRAME_REPORT, on_report, reports);
}
