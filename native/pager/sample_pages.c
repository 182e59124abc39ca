/* See sample_pages.h. */
#include "sample_pages.h"

#include <errno.h>
#include <stdlib.h>

#include "read_pages.h"
#include "rounds.h"

enum { PAGES_MAX = 16384 };

struct sampled_page {
    uint64_t address;
    size_t process; /* the place in the list of processes, which keeps ended ones */
    int pid;
    bool written;
};

static uint8_t contents[STREAM_PAGES_MAX * STREAM_PAGE];

static uint64_t below(struct sample_pages *sample, uint64_t limit)
{
    sample->random ^= sample->random << 13, sample->random ^= sample->random >> 7;
    sample->random ^= sample->random << 17;
    return sample->random % limit;
}

struct choosing {
    struct sample_pages *sample;
    const struct processes *processes;
};

/* Pages are counted through all processes; of each `step` of them one is taken, whichever it may be. */
static int choose(void *context, uint64_t start, uint64_t end, uint64_t categories)
{
    struct choosing *choosing = context;
    struct sample_pages *sample = choosing->sample;
    uint64_t pages = (end - start) / STREAM_PAGE;

    (void)categories;
    while (sample->next < sample->seen + pages && sample->count < PAGES_MAX) {
        sample->list[sample->count++] =
            (struct sampled_page){.address = start + (sample->next - sample->seen) * STREAM_PAGE,
                                  .process = sample->process,
                                  .pid = choosing->processes->list[sample->process].pid};
        sample->next = sample->count * sample->step + below(sample, sample->step);
    }
    sample->seen += pages;
    return 0;
}

static bool is_there(const struct sampled_page *page, const struct processes *processes)
{
    const struct process *process = &processes->list[page->process];

    return process->listed && process->pid == page->pid && process->mappings.count;
}

/* Reads pages of one process from `first` of the list on, and notes which have changed. Where the next ones begin. */
static size_t look_at_some(struct sample_pages *sample, const struct processes *processes, size_t first)
{
    const struct process *process = &processes->list[sample->list[first].process];
    struct batch batch = {
        .source = {.pid = process->pid, .memory = process->memory, .pagemap = process->pagemap}};
    enum page_state states[STREAM_PAGES_MAX];
    size_t places[STREAM_PAGES_MAX], at = first;

    for (; at < sample->count && batch.count < RANGES_MAX; at++) {
        const struct sampled_page *page = &sample->list[at];

        if (page->process != sample->list[first].process)
            break;
        if (page->written || !is_there(page, processes))
            continue;
        places[batch.count] = at;
        batch.ranges[batch.count++] = (struct range){page->address, 1, false};
        batch.pages++;
    }
    read_pages(&batch, contents, states);
    for (uint32_t i = 0; i < batch.count; i++)
        if (states[i] != PAGE_IS_GONE &&
            page_sums_changed(&sample->sums, places[i], contents + (size_t)i * STREAM_PAGE))
            sample->list[places[i]].written = true;
    return at;
}

static void look_at_all(struct sample_pages *sample, const struct processes *processes)
{
    for (size_t at = 0; at < sample->count;)
        at = look_at_some(sample, processes, at);
}

int sample_pages_begin(struct sample_pages *sample, const struct processes *processes)
{
    struct choosing choosing = {sample, processes};
    int error = rounds_measure_tracked(processes, &sample->present);

    if (error)
        return error;
    if (!(sample->list = calloc(PAGES_MAX, sizeof(*sample->list))))
        return -ENOMEM;
    sample->step = sample->present / STREAM_PAGE / PAGES_MAX + 1;
    sample->random = UINT64_C(0x9e3779b97f4a7c15);
    for (; sample->process < processes->count && !error; sample->process++) {
        const struct process *process = &processes->list[sample->process];

        if (process->listed && process->mappings.count)
            error = tracker_see_tracked(process, choose, &choosing);
        if (error == -ESRCH)
            error = 0; /* it has just ended */
    }
    look_at_all(sample, processes);
    for (size_t i = 0; i < sample->count; i++)
        sample->list[i].written = false;
    return error;
}

int sample_pages_look(struct sample_pages *sample, const struct processes *processes, uint64_t *bytes)
{
    uint64_t present, written = 0;
    int error = rounds_measure_tracked(processes, &present);

    if (error)
        return error;
    look_at_all(sample, processes);
    for (size_t i = 0; i < sample->count; i++)
        written += sample->list[i].written;
    *bytes = written * sample->step * STREAM_PAGE + (present > sample->present ? present - sample->present : 0);
    return 0;
}

void sample_pages_free(struct sample_pages *sample)
{
    page_sums_free(&sample->sums);
    free(sample->list);
    *sample = (struct sample_pages){0};
}
