/* See counters.h: /proc/interrupts, /proc/softirqs, /proc/stat, /proc/net/dev (proc(5)) and sysfs. */
#include "counters.h"

#include <ctype.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { UNKNOWN = -1, LINE = 65536, NUMBERS_MAX = 64 };

const char *const counter_names[COUNTERS] = {"card_interrupts", "interrupts",   "softirqs", "switches",
                                             "own_switches",    "frames",       "bytes"};

struct numbers {
    long all[NUMBERS_MAX];
    size_t count;
};

/* Card interrupts as numbers of /proc/interrupts: MSI's have a directory, another has a file. A virtio device is below
 * the PCI device that has them. */
static struct numbers card_numbers(const char *interface)
{
    struct numbers found = {0};

    for (int above = 0; above < 2 && found.count == 0; above++) {
        char path[256];
        struct dirent *entry;
        DIR *directory;
        FILE *file;

        snprintf(path, sizeof path, "/sys/class/net/%s/device/%smsi_irqs", interface, above ? "../" : "");
        directory = opendir(path);
        while (directory && (entry = readdir(directory)) && found.count < NUMBERS_MAX)
            if (isdigit((unsigned char)entry->d_name[0]))
                found.all[found.count++] = strtol(entry->d_name, NULL, 10);
        if (directory)
            closedir(directory);
        snprintf(path, sizeof path, "/sys/class/net/%s/device/%sirq", interface, above ? "../" : "");
        file = found.count == 0 ? fopen(path, "r") : NULL;
        if (file && fscanf(file, "%ld", &found.all[0]) == 1 && found.all[0] > 0)
            found.count = 1;
        if (file)
            fclose(file);
    }
    return found;
}

/* The sum of the numbers that follow, one for each CPU. */
static long long sum_columns(const char *text)
{
    long long sum = 0;
    char *end;

    for (;;) {
        long long value = strtoll(text, &end, 10);

        if (end == text || (*end && !isspace((unsigned char)*end)))
            return sum; /* the end, or the name of the controller, which may begin with a digit */
        sum += value;
        text = end;
    }
}

static bool is_wanted(const struct numbers *wanted, long number)
{
    for (size_t i = 0; i < wanted->count; i++)
        if (wanted->all[i] == number)
            return true;
    return false;
}

static long long card_interrupts(const char *interface, char *line)
{
    struct numbers wanted = card_numbers(interface);
    FILE *file = wanted.count ? fopen("/proc/interrupts", "r") : NULL;
    long long sum = UNKNOWN;

    while (file && fgets(line, LINE, file)) {
        char *end;
        long number = strtol(line, &end, 10);

        if (end != line && *end == ':' && is_wanted(&wanted, number))
            sum = (sum < 0 ? 0 : sum) + sum_columns(end + 1);
    }
    if (file)
        fclose(file);
    return sum;
}

/* The sum of the numbers behind these words at the begin of lines of a file. */
static long long sum_of(const char *path, const char *const *words, bool first_only, char *line)
{
    FILE *file = fopen(path, "r");
    long long sum = UNKNOWN;

    while (file && fgets(line, LINE, file)) {
        const char *text = line + strspn(line, " ");

        for (const char *const *word = words; *word; word++)
            if (strncmp(text, *word, strlen(*word)) == 0) {
                text += strlen(*word);
                sum = (sum < 0 ? 0 : sum) + (first_only ? strtoll(text, NULL, 10) : sum_columns(text));
                break;
            }
    }
    if (file)
        fclose(file);
    return sum;
}

static void read_interface(const char *interface, char *line, long long *frames, long long *bytes)
{
    FILE *file = fopen("/proc/net/dev", "r");
    size_t length = strlen(interface);

    *frames = *bytes = UNKNOWN;
    while (file && fgets(line, LINE, file)) {
        const char *text = line + strspn(line, " ");

        if (strncmp(text, interface, length) == 0 && text[length] == ':')
            sscanf(text + length + 1, "%*s %*s %*s %*s %*s %*s %*s %*s %lld %lld", bytes, frames);
    }
    if (file)
        fclose(file);
}

void counters_read(const char *interface, long long values[COUNTERS])
{
    static const char *const all[] = {"intr ", NULL}, *const switches[] = {"ctxt ", NULL};
    static const char *const net[] = {"NET_RX:", "NET_TX:", NULL};
    static char line[LINE]; /* of /proc/stat one is long */
    struct rusage own;

    values[COUNTER_CARD_INTERRUPTS] = card_interrupts(interface, line);
    values[COUNTER_INTERRUPTS] = sum_of("/proc/stat", all, true, line);
    values[COUNTER_SOFTIRQS] = sum_of("/proc/softirqs", net, false, line);
    values[COUNTER_SWITCHES] = sum_of("/proc/stat", switches, true, line);
    getrusage(RUSAGE_SELF, &own);
    values[COUNTER_OWN_SWITCHES] = own.ru_nvcsw + own.ru_nivcsw;
    read_interface(interface, line, &values[COUNTER_FRAMES], &values[COUNTER_BYTES]);
}
