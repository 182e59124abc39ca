/* See rounds.h. */
#include "rounds.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "wp_async.h"

enum { ATTEMPTS = 5 };

/* One process in one round. */
struct pass {
    struct process *process;
    struct page_set written; /* is sent now */
    struct page_set present; /* has contents */
};

/* A part of a region that is pageable. */
typedef int (*part_call)(void *context, uint64_t start, uint64_t end, uint64_t categories);

static int send_written(void *context, uint64_t start, uint64_t end, uint64_t categories)
{
    struct pass *pass = context;
    int error;

    if (categories & PAGE_IS_GUARD)
        return 0;
    if ((error = page_set_add(&pass->written, start, end)))
        return error;
    return categories & PAGE_IS_PFNZERO ? sender_add_zero(pass->process, start, end)
                                        : sender_add(pass->process, start, end);
}

static int note_present(void *context, uint64_t start, uint64_t end, uint64_t categories)
{
    struct pass *pass = context;

    return categories & PAGE_IS_GUARD ? 0 : page_set_add(&pass->present, start, end);
}

static int send_hole(void *context, uint64_t start, uint64_t end)
{
    const struct pass *pass = context;

    return sender_add_zero(pass->process, start, end);
}

/* What has been sent and is no longer there is a hole, unless it is sent in this pass, as it was before it went. */
static int send_holes(struct pass *pass)
{
    struct page_set gone = {0};
    int error = page_set_add_all(&gone, &pass->process->sent);

    page_set_remove_all(&gone, &pass->present);
    page_set_remove_all(&gone, &pass->written);
    if (!error)
        error = page_set_each(&gone, send_hole, pass);
    page_set_remove_all(&pass->process->sent, &gone);
    page_set_free(&gone);
    return error;
}

/* However the pass ended: what it has sent is sent. A process that ended meanwhile (or called exec) is no error. */
static int end_pass(struct pass *pass, int error)
{
    int forgot = page_set_add_all(&pass->process->sent, &pass->written);

    page_set_free(&pass->written);
    page_set_free(&pass->present);
    return error && error != -ESRCH ? error : forgot;
}

static int send_process(struct process *process)
{
    struct pass pass = {.process = process};
    int error = tracker_take_written(process, send_written, &pass);

    if (!error)
        error = tracker_survey(process, note_present, &pass);
    if (!error)
        error = send_holes(&pass);
    return end_pass(&pass, error);
}

/* Those that are in the list no more; their numbers may come again in a later round, not in this one. */
static int send_ends(struct processes *processes)
{
    int error = 0;

    for (size_t i = 0; i < processes->count && !error; i++)
        if (!processes->list[i].listed && processes->list[i].sent.room)
            error = sender_add_end(processes->list[i].inside);
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
    return error;
}

int rounds_send(struct processes *processes, const char *tasks, uint64_t number, struct sender_totals *totals)
{
    int error = processes_read(processes, tasks);

    if (!error)
        error = send_ends(processes);
    for (size_t i = 0; i < processes->count && !error; i++) {
        char reason[256];

        if (!tracker_follow(&processes->list[i], reason, sizeof(reason)))
            error = send_process(&processes->list[i]);
    }
    return error ? error : sender_finish('R', number, totals);
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
    return error;
}

/* Registered is what is pageable. Of the rest, only mappings tell. */
static int each_pageable(const struct process *process, uint64_t start, uint64_t end, uint64_t categories, part_call call,
                         void *context)
{
    int error = 0;

    if (categories & PAGE_IS_GUARD)
        return 0;
    if (categories & PAGE_IS_WPALLOWED)
        return call(context, start, end, categories);
    while (start < end && !error) {
        const struct mapping *mapping = mappings_find_pageable(&process->mappings, start);
        uint64_t until;

        if (!mapping || mapping->start >= end)
            break;
        start = start > mapping->start ? start : mapping->start;
        until = end < mapping->end ? end : mapping->end;
        error = call(context, start, until, categories | PAGE_IS_WRITTEN);
        start = until;
    }
    return error;
}

static int settle_part(void *context, uint64_t start, uint64_t end, uint64_t categories)
{
    int error = note_present(context, start, end, categories);

    return error || !(categories & PAGE_IS_WRITTEN) ? error : send_written(context, start, end, categories);
}

static int settle(void *context, uint64_t start, uint64_t end, uint64_t categories)
{
    struct pass *pass = context;

    return each_pageable(pass->process, start, end, categories, settle_part, pass);
}

int rounds_send_last(struct processes *processes, uint64_t number, struct sender_totals *totals)
{
    int error = send_ends(processes);

    for (size_t i = 0; i < processes->count && !error; i++) {
        struct pass pass = {.process = &processes->list[i]};

        if (pass.process->mappings.count)
            error = tracker_survey(pass.process, settle, &pass);
        if (!error)
            error = send_holes(&pass);
        error = end_pass(&pass, error);
    }
    return error ? error : sender_finish('L', number, totals);
}

struct measure {
    const struct process *process;
    struct rounds_sizes *sizes;
};

static int measure_part(void *context, uint64_t start, uint64_t end, uint64_t categories)
{
    struct measure *measure = context;

    if (categories & PAGE_IS_PFNZERO)
        return 0;
    measure->sizes->all += end - start;
    if (categories & PAGE_IS_WRITTEN)
        measure->sizes->unsent += end - start;
    return 0;
}

static int measure_region(void *context, uint64_t start, uint64_t end, uint64_t categories)
{
    const struct measure *measure = context;

    return each_pageable(measure->process, start, end, categories, measure_part, context);
}

int rounds_measure(struct processes *processes, struct rounds_sizes *sizes)
{
    int error = 0;

    *sizes = (struct rounds_sizes){0};
    for (size_t i = 0; i < processes->count && !error; i++) {
        struct measure measure = {&processes->list[i], sizes};

        if (measure.process->listed && measure.process->mappings.count)
            error = tracker_survey(&processes->list[i], measure_region, &measure);
        if (error == -ESRCH)
            error = 0; /* it has just ended */
    }
    return error;
}
