/* What tiles do, for who balances: CPU time of each, and messages between processes, summed over the hosts. */
#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "board.h"

#define LINE_ROOM (64 * 1024) /* bytes: every pair of processes in 24 */

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

void report_make(struct board *board, struct report *report)
{
    struct window *window = board->window;
    cpu_set_t set;

    report->cpus = sched_getaffinity(0, sizeof(set), &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
    for (uint32_t tile = 0; tile < window->tile_count; tile++)
        report->cpu[tile] = window_is_here(window, tile) ? cpu_time(window->tiles[tile].pid) : 0;
    for (uint32_t from = 0; from < PROCESS_MAX; from++)
        for (uint32_t to = 0; to < PROCESS_MAX; to++)
            report->said[from][to] = atomic_load(&window->said[from][to]);
}

void report_tell(struct board *board, struct client *client)
{
    static char line[LINE_ROOM];
    struct net *net = &board->net;
    size_t at = 0;

    report_make(board, &net->reports[0]);
    at += (size_t)snprintf(line, LINE_ROOM, "{\"event\": \"loads\", \"cpus\": [");
    for (uint32_t host = 0; host < net->hosts; host++)
        at += (size_t)snprintf(line + at, LINE_ROOM - at, "%s%u", host ? ", " : "", net->reports[host].cpus);
    at += (size_t)snprintf(line + at, LINE_ROOM - at, "], \"cpu_ns\": [");
    for (uint32_t tile = 0; tile < board->window->tile_count; tile++)
        at += (size_t)snprintf(line + at, LINE_ROOM - at, "%s%" PRIu64, tile ? ", " : "",
                               net->reports[net_host_of_tile(board, tile)].cpu[tile]);
    at += (size_t)snprintf(line + at, LINE_ROOM - at, "], \"said\": [");
    for (uint32_t from = 1, first = 1; from < PROCESS_MAX; from++)
        for (uint32_t to = 1; to < PROCESS_MAX; to++) {
            uint32_t count = 0;

            for (uint32_t host = 0; host < net->hosts; host++)
                count += net->reports[host].said[from][to];
            if (!count)
                continue;
            at += (size_t)snprintf(line + at, LINE_ROOM - at, "%s[%u, %u, %u]", first ? "" : ", ", from, to, count);
            first = 0;
        }
    snprintf(line + at, LINE_ROOM - at, "]}");
    client_say_line(client, line);
}
