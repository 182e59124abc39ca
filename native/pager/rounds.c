/* See rounds.h. */
#include "rounds.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "pins.h"
#include "wp_async.h"

enum { ATTEMPTS = 5 };

/* One process in one round. */
struct pass {
    struct process *process;
    struct page_set written; /* is sent now */
    struct page_set again;   /* of it, what was sent before */
    struct page_set gone;    /* was sent before, and has no contents any more */
    struct later *later;     /* NULL: now */
};

static int send_written(void *context, uint64_t start, uint64_t end, uint64_t categories)
{
    struct pass *pass = context;
    int error;

    if (categories & PAGE_IS_GUARD)
        return 0;
    error = page_set_add(&pass->written, start, end);
    if (!error)
        error = page_set_add_common(&pass->again, &pass->process->sent, start, end);
    if (error)
        return error;
    if (categories & PAGE_IS_PFNZERO)
        return sender_add_zero(pass->process, start, end);
    return pass->later ? later_add(pass->later, pass->process, start, end) : sender_add(pass->process, start, end);
}

static int note_gone(void *context, uint64_t start, uint64_t end, uint64_t categories)
{
    struct pass *pass = context;

    (void)categories;
    return page_set_add_common(&pass->gone, &pass->process->sent, start, end);
}

static int send_hole(void *context, uint64_t start, uint64_t end)
{
    const struct pass *pass = context;

    return sender_add_zero(pass->process, start, end);
}

/*
 * A page that went after it was found written is sent in this pass, as it was before or as zero; as a hole in the next.
 */
static int send_holes(struct pass *pass)
{
    int error = tracker_see_holes(pass->process, note_gone, pass);

    page_set_remove_all(&pass->gone, &pass->written);
    if (!error)
        error = page_set_each(&pass->gone, send_hole, pass);
    if (!error)
        page_set_remove_all(&pass->process->sent, &pass->gone);
    return error;
}

/* However the pass ended: its sent pages are sent. A process that ended meanwhile (or called exec) is no error. */
static int end_pass(struct pass *pass, int error)
{
    int forgot = page_set_add_all(&pass->process->sent, &pass->written);

    page_set_free(&pass->written);
    page_set_free(&pass->gone);
    page_set_free(&pass->process->again);
    pass->process->again = pass->again;
    pass->process->is_sent = !error;
    return error && error != -ESRCH ? error : forgot;
}

static int send_process(struct process *process)
{
    struct pass pass = {.process = process};
    char reason[256];
    int error = pins_may_be(process->pid) ? tracker_compare(process) : 0;

    process->is_sent = process->may_be_pinned = false;
    if (error || tracker_follow(process, reason, sizeof(reason)))
        return error;
    error = tracker_take_written(process, send_written, &pass);
    if (!error)
        error = send_holes(&pass);
    process->may_be_pinned = pins_may_be(process->pid);
    return end_pass(&pass, error);
}

/* Processes whose memory may be pinned; all of a node, when one of its threads writes to the memory of others. */
static int compare_pinned(struct processes *processes)
{
    bool all = false;
    int error = 0;

    for (size_t i = 0; i < processes->count && !all; i++)
        all = processes->list[i].listed && pins_others(processes->list[i].pid);
    for (size_t i = 0; i < processes->count && !error; i++)
        if (all || processes->list[i].may_be_pinned)
            error = tracker_compare(&processes->list[i]);
    return error;
}

/* All owed pages have been sent. */
static void forget_owed(struct processes *processes)
{
    if (read_pages_failed())
        return; /* a page that is owed may not have been read */
    for (size_t i = 0; i < processes->count; i++)
        if (processes->list[i].is_sent)
            page_set_free(&processes->list[i].owed);
    objects_sent(&processes->objects);
}

/* Processes that are in the list no more; their numbers may come again in a later round, not in this one. */
static int send_ends(struct processes *processes)
{
    int error = 0;

    for (size_t i = 0; i < processes->count && !error; i++)
        if (!processes->list[i].listed && processes->list[i].sent.room)
            error = sender_add_end(processes->list[i].ns_pid);
    if (!error)
        processes_drop_ended(processes);
    return error;
}

/* It may end or call exec just now: then it is to be looked at again. */
static int begin_process(struct process *process, char *why, size_t size)
{
    struct timespec nap = {.tv_nsec = 2000000};

    for (int attempt = 0;; attempt++) {
        char reason[256];
        int error = tracker_follow(process, reason, sizeof(reason));

        if (!error || error == -EBUSY || tracker_look(process))
            return 0; /* -EBUSY: it will have memory of its own (after vfork) */
        if (attempt == ATTEMPTS) {
            snprintf(why, size, "process %d cannot be tracked: %s", process->pid, reason);
            return error;
        }
        nanosleep(&nap, NULL);
    }
}

int rounds_begin(struct processes *processes, const char *tasks, char *why, size_t size)
{
    int error = processes_read(processes, tasks);

    if (error)
        snprintf(why, size, "%s: %s", tasks, error == -EEXIST ? "two processes have one number" : strerror(-error));
    for (size_t i = 0; i < processes->count && !error; i++)
        error = begin_process(&processes->list[i], why, size);
    if (!error && (error = objects_look(&processes->objects, processes->list, processes->count)))
        snprintf(why, size, "shared memory: %s", strerror(-error));
    return error;
}

int rounds_send(struct processes *processes, const char *tasks, uint64_t number, struct sender_totals *totals)
{
    int error = processes_read(processes, tasks);

    if (!error)
        error = send_ends(processes);
    if (!error)
        error = compare_pinned(processes);
    for (size_t i = 0; i < processes->count && !error; i++)
        error = send_process(&processes->list[i]);
    if (!error)
        error = objects_look(&processes->objects, processes->list, processes->count);
    if (!error)
        error = objects_send(&processes->objects);
    if (!error)
        error = sender_finish('R', number, totals);
    if (!error)
        forget_owed(processes);
    return error ? error : compare_pinned(processes);
}

int rounds_look(struct processes *processes, const char *tasks)
{
    int error = processes_read(processes, tasks);

    for (size_t i = 0; i < processes->count && !error; i++) {
        if (processes->list[i].listed)
            error = tracker_look(&processes->list[i]);
        if (error == -ESRCH || error == -ENOENT)
            error = 0; /* it has just ended, and has no mapping */
    }
    return error ? error : objects_look(&processes->objects, processes->list, processes->count);
}

/* All that the destination does not have as it is. The memory of a process in vfork is tracked as its parent's only. */
static int each_unsent(const struct process *process, tracker_region region, void *context)
{
    int error = tracker_follows(process) ? tracker_see_written(process, region, context)
                                         : tracker_see_tracked(process, region, context);

    return error ? error : tracker_see_untracked(process, region, context);
}

int rounds_send_last(struct processes *processes, uint64_t number, struct later *later, struct sender_totals *totals)
{
    int error = send_ends(processes);

    for (size_t i = 0; i < processes->count && !error; i++) {
        struct pass pass = {.process = &processes->list[i], .later = later};

        if (!pass.process->mappings.count)
            continue; /* it has ended, whatever had been sent of it */
        error = each_unsent(pass.process, send_written, &pass);
        if (!error)
            error = send_holes(&pass);
        error = end_pass(&pass, error);
    }
    read_pages_failed(); /* when it was measured: such a page is compared again */
    if (!error)
        error = objects_send_last(&processes->objects);
    if (!error && later)
        error = later_announce(later);
    if (!error)
        error = sender_finish(later ? 'P' : 'L', number, totals);
    if (!error && read_pages_failed())
        error = -EIO;
    if (!error)
        forget_owed(processes);
    return error;
}

static int add_bytes(void *context, uint64_t start, uint64_t end, uint64_t categories)
{
    uint64_t *bytes = context;

    if (!(categories & (PAGE_IS_PFNZERO | PAGE_IS_GUARD)))
        *bytes += end - start;
    return 0;
}

static int measure(const struct processes *processes, uint64_t *bytes,
                   int (*each)(const struct process *process, tracker_region region, void *context))
{
    int error = 0;

    *bytes = 0;
    for (size_t i = 0; i < processes->count && !error; i++) {
        const struct process *process = &processes->list[i];

        if (process->listed && process->mappings.count)
            error = each(process, add_bytes, bytes);
        if (error == -ESRCH)
            error = 0; /* it has just ended */
    }
    return error;
}

int rounds_measure_tracked(const struct processes *processes, uint64_t *bytes)
{
    int error = measure(processes, bytes, tracker_see_tracked);

    *bytes += objects_size(&processes->objects);
    return error;
}

int rounds_measure_unsent(struct processes *processes, uint64_t *bytes)
{
    uint64_t changed = 0;
    int error = measure(processes, bytes, each_unsent);

    if (!error)
        error = objects_measure(&processes->objects, &changed);
    *bytes += changed;
    return error;
}
