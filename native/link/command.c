/* See command.h. */
#include "command.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* bit/s; a queue of a minute is then a number of bytes that fits. */
#define BANDWIDTH_MAX UINT64_C(10000000000000)

static bool is_possible(const struct shape_rules *rules)
{
    return rules->latency_ns >= 0 && rules->jitter_ns >= 0 && rules->jitter_ns <= rules->latency_ns &&
           rules->latency_ns <= INT64_C(60000000000) && rules->bandwidth <= BANDWIDTH_MAX &&
           rules->loss >= 0 && rules->loss <= 1;
}

int command_parse(const char *line, struct shape_rules rules[2])
{
    struct shape_rules read[2];
    int end = 0;

    if (strcmp(line, "show") == 0)
        return COMMAND_SHOW;
    if (strcmp(line, "end") == 0)
        return COMMAND_END;
    if (sscanf(line, "set %" SCNd64 " %" SCNd64 " %" SCNu64 " %lf %" SCNd64 " %" SCNd64 " %" SCNu64 " %lf%n",
               &read[0].latency_ns, &read[0].jitter_ns, &read[0].bandwidth, &read[0].loss, &read[1].latency_ns,
               &read[1].jitter_ns, &read[1].bandwidth, &read[1].loss, &end) != 8 ||
        line[end] != '\0' || !is_possible(&read[0]) || !is_possible(&read[1]))
        return -EINVAL;
    memcpy(rules, read, sizeof(read));
    return COMMAND_SET;
}
