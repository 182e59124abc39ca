/* See tracker.h. */
#include "tracker.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "inject_userfaultfd.h"
#include "pagemap_tracker.h"
#include "wp_async.h"

enum { REGIONS = 8192, LOOKS = 4 };
enum { WITH_CONTENTS = PAGE_IS_PRESENT | PAGE_IS_SWAPPED };

static struct page_region found[REGIONS];
static enum tracking used;

void tracker_use(enum tracking tracking)
{
    used = tracking;
}

enum tracking tracker_used(void)
{
    return used;
}

bool tracker_scans(const struct process *process)
{
    return used == TRACKING_WP_ASYNC && !process->is_compared;
}

bool tracker_follows(const struct process *process)
{
    return tracker_scans(process) ? process->userfaultfd >= 0 : process->registered;
}

static void close_one(int *descriptor)
{
    if (*descriptor >= 0)
        close(*descriptor);
    *descriptor = -1;
}

static int open_of(const struct process *process, const char *name)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/%s", process->pid, name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static int look(struct process *process)
{
    int error;

    process->mappings.count = 0;
    close_one(&process->pagemap);
    close_one(&process->memory);
    process->pagemap = open_of(process, "pagemap");
    process->memory = open_of(process, "mem");
    if (process->pagemap < 0 || process->memory < 0)
        return -errno;
    if ((error = mappings_read(process->pid, &process->mappings)))
        return error;
    return process->mappings.count ? 0 : -ESRCH;
}

/* Within exec a process is seen without memory: then there is another one now, or it has ended. */
int tracker_look(struct process *process)
{
    int error;

    if (!tracker_scans(process) && !process->sums && !(process->sums = calloc(1, sizeof(*process->sums))))
        return -ENOMEM;
    error = look(process);
    return error == -ESRCH ? look(process) : error;
}

/* The categories that this kernel lacks: guards, before Linux 6.15. It is asked about no memory. */
static uint64_t unknown_categories(const struct process *process)
{
    static enum { UNASKED, KNOWN, UNKNOWN } guards;
    struct pm_scan_arg nothing = {.size = sizeof(nothing), .return_mask = PAGE_IS_GUARD};

    if (guards == UNASKED)
        guards = ioctl(process->pagemap, PAGEMAP_SCAN, &nothing) < 0 && errno == EINVAL ? UNKNOWN : KNOWN;
    return guards == UNKNOWN ? PAGE_IS_GUARD : 0;
}

/* Walks over the ranges of `arguments`, as often as the answer has room for. */
static int scan(const struct process *process, struct pm_scan_arg arguments, tracker_region region, void *context)
{
    arguments.size = sizeof(arguments);
    arguments.return_mask &= ~unknown_categories(process);
    arguments.vec = (uintptr_t)found;
    arguments.vec_len = REGIONS;
    while (arguments.start < arguments.end) {
        int count = ioctl(process->pagemap, PAGEMAP_SCAN, &arguments), answer;

        if (count < 0)
            return errno == EINTR ? -EAGAIN : -errno;
        for (int i = 0; i < count; i++)
            if ((answer = region(context, found[i].start, found[i].end, found[i].categories)))
                return answer;
        arguments.start = arguments.walk_end;
    }
    return 0;
}

static uint64_t first_address(const struct process *process)
{
    return process->mappings.list[0].start;
}

static uint64_t last_address(const struct process *process)
{
    return process->mappings.list[process->mappings.count - 1].end;
}

/* Whether all that is mapped there is registered. The kernel checks mappings only; it does not walk their pages. */
static bool is_registered(const struct process *process, uint64_t start, uint64_t end)
{
    struct pm_scan_arg arguments = {.size = sizeof(arguments),
                                    .flags = PM_SCAN_CHECK_WPASYNC,
                                    .start = start,
                                    .end = end,
                                    .vec = (uintptr_t)found,
                                    .vec_len = 1,
                                    .category_inverted = PAGE_IS_WPALLOWED,
                                    .category_mask = PAGE_IS_WPALLOWED,
                                    .return_mask = PAGE_IS_WPALLOWED};

    return !ioctl(process->pagemap, PAGEMAP_SCAN, &arguments);
}

static int one_is_enough(void *context, uint64_t start, uint64_t end, uint64_t categories)
{
    (void)context, (void)start, (void)end, (void)categories;
    return 1;
}

/* A userfaultfd belongs to an address space: none of a new one is registered, while the stack of an old one always is. */
static bool has_called_exec(const struct process *process)
{
    struct pm_scan_arg arguments = {.start = first_address(process),
                                    .end = last_address(process),
                                    .max_pages = 1,
                                    .category_mask = PAGE_IS_WPALLOWED,
                                    .return_mask = PAGE_IS_WPALLOWED};

    return process->registered && scan(process, arguments, one_is_enough, NULL) != 1;
}

/*
 * A protection may be left from before, when the mapping was registered and then lost that: such a page would look as if
 * it had been sent. False: it is left still, as something else is mapped there by now.
 */
static bool unprotect(const struct process *process, const struct mapping *mapping)
{
    struct pm_scan_arg protected = {.start = mapping->start,
                                    .end = mapping->end,
                                    .max_pages = 1,
                                    .category_inverted = PAGE_IS_WRITTEN,
                                    .category_mask = PAGE_IS_WRITTEN,
                                    .category_anyof_mask = WITH_CONTENTS,
                                    .return_mask = PAGE_IS_WRITTEN};
    struct uffdio_writeprotect all = {.range = {mapping->start, mapping->end - mapping->start}};

    return !scan(process, protected, one_is_enough, NULL) || !ioctl(process->userfaultfd, UFFDIO_WRITEPROTECT, &all);
}

/*
 * How many it has registered. A mapping that cannot be, or went away meanwhile, is found again by the next round or the
 * last pass.
 */
static int register_new(struct process *process)
{
    int count = 0;

    for (size_t i = 0; i < process->mappings.count; i++) {
        const struct mapping *mapping = &process->mappings.list[i];
        struct uffdio_register request = {.range = {mapping->start, mapping->end - mapping->start},
                                          .mode = UFFDIO_REGISTER_MODE_WP};

        if (!mapping->pageable || is_registered(process, mapping->start, mapping->end))
            continue;
        if (ioctl(process->userfaultfd, UFFDIO_REGISTER, &request))
            continue;
        process->registered = true;
        if (!unprotect(process, mapping)) {
            ioctl(process->userfaultfd, UFFDIO_UNREGISTER, &request.range);
            continue;
        }
        count++;
    }
    return count;
}

/*
 * A mapping that grew meanwhile is registered in part, and so split in two, on which the program cannot call mremap as on
 * one. They become one when the rest is registered: so that is done at once.
 */
static int register_all(struct process *process)
{
    int error = 0;

    for (int look = 0; look < LOOKS && !error && register_new(process); look++)
        error = tracker_look(process);
    return error;
}

/* After vfork, until exec: the memory is its parent's, which is tracked there. */
static bool borrows_memory(const struct process *process)
{
    return process->parent > 0 && !syscall(SYS_kcmp, process->pid, process->parent, KCMP_VM, 0, 0);
}

int tracker_follow(struct process *process, char *why, size_t size)
{
    int error = tracker_look(process);

    if (!error && borrows_memory(process))
        error = -EBUSY;
    if (error) {
        snprintf(why, size, "it has no memory of its own: %s", strerror(-error));
        return error;
    }
    if (!tracker_scans(process)) {
        process->registered = true;
        return 0;
    }
    if (has_called_exec(process))
        close_one(&process->userfaultfd);
    if (process->userfaultfd < 0) {
        process->registered = false;
        process->userfaultfd = inject_userfaultfd(process->pid, why, size);
        if ((error = process->userfaultfd) < 0) {
            process->userfaultfd = -1;
            return error;
        }
    }
    if ((error = register_all(process)))
        snprintf(why, size, "it has ended: %s", strerror(-error));
    return error;
}

int tracker_compare(struct process *process)
{
    int error;

    if (!tracker_scans(process))
        return 0;
    if (!process->sums && !(process->sums = calloc(1, sizeof(*process->sums))))
        return -ENOMEM;
    if ((error = page_set_add_all(&process->owed, &process->sent)))
        return error;
    close_one(&process->userfaultfd);
    process->registered = false;
    process->is_compared = true;
    return 0;
}

static int scan_all(const struct process *process, struct pm_scan_arg arguments, tracker_region region, void *context)
{
    arguments.start = first_address(process);
    arguments.end = last_address(process);
    arguments.return_mask |= PAGE_IS_PFNZERO | PAGE_IS_GUARD;
    return scan(process, arguments, region, context);
}

static int scan_part(const struct process *process, struct pm_scan_arg arguments, uint64_t start, uint64_t end,
                     tracker_region region, void *context)
{
    arguments.start = start > first_address(process) ? start : first_address(process);
    arguments.end = end < last_address(process) ? end : last_address(process);
    return scan(process, arguments, region, context);
}

/*
 * Pages written again since the round before come last: the sooner the next scan, the fewer of them are written anew.
 */
static int scan_in_order(const struct process *process, struct pm_scan_arg arguments, tracker_region region,
                         void *context)
{
    const struct page_set *again = &process->again;
    uint64_t start = 0;
    int error = 0;

    for (size_t i = 0; i < again->count && !error; i++) {
        error = scan_part(process, arguments, start, again->blocks[i].number * PAGE_SET_BLOCK, region, context);
        start = (again->blocks[i].number + 1) * PAGE_SET_BLOCK;
    }
    if (!error)
        error = scan_part(process, arguments, start, UINT64_MAX, region, context);
    for (size_t i = 0; i < again->count && !error; i++) {
        start = again->blocks[i].number * PAGE_SET_BLOCK;
        error = scan_part(process, arguments, start, start + PAGE_SET_BLOCK, region, context);
    }
    return error;
}

struct pageable {
    const struct process *process;
    tracker_region region;
    void *context;
};

/* Only the mappings show what is pageable. */
static int pass_on_pageable(void *context, uint64_t start, uint64_t end, uint64_t categories)
{
    const struct pageable *pageable = context;
    int error = 0;

    while (start < end && !error) {
        const struct mapping *mapping = mappings_find_pageable(&pageable->process->mappings, start);
        uint64_t until;

        if (!mapping || mapping->start >= end)
            break;
        start = start > mapping->start ? start : mapping->start;
        until = end < mapping->end ? end : mapping->end;
        error = pageable->region(pageable->context, start, until, categories);
        start = until;
    }
    return error;
}

/* Of a process that is compared, on a kernel that scans: large reservations cost nothing. */
static int see_contents(const struct process *process, tracker_region region, void *context)
{
    struct pm_scan_arg arguments = {.category_anyof_mask = WITH_CONTENTS};
    struct pageable pageable = {process, region, context};

    return scan_all(process, arguments, pass_on_pageable, &pageable);
}

int tracker_take_written(struct process *process, tracker_region region, void *context)
{
    struct pm_scan_arg arguments = {.flags = PM_SCAN_WP_MATCHING,
                                    .category_mask = PAGE_IS_WPALLOWED | PAGE_IS_WRITTEN,
                                    .category_anyof_mask = WITH_CONTENTS,
                                    .return_mask = PAGE_IS_PFNZERO | PAGE_IS_GUARD};

    if (used != TRACKING_WP_ASYNC)
        return pagemap_see_contents(process, region, context);
    return process->is_compared ? see_contents(process, region, context)
                                : scan_in_order(process, arguments, region, context);
}

int tracker_see_written(const struct process *process, tracker_region region, void *context)
{
    struct pm_scan_arg arguments = {.category_mask = PAGE_IS_WPALLOWED | PAGE_IS_WRITTEN,
                                    .category_anyof_mask = WITH_CONTENTS};

    if (used != TRACKING_WP_ASYNC)
        return pagemap_see_contents(process, region, context);
    return process->is_compared ? see_contents(process, region, context)
                                : scan_all(process, arguments, region, context);
}

int tracker_see_untracked(const struct process *process, tracker_region region, void *context)
{
    struct pm_scan_arg arguments = {.category_inverted = PAGE_IS_WPALLOWED,
                                    .category_mask = PAGE_IS_WPALLOWED,
                                    .category_anyof_mask = WITH_CONTENTS};
    struct pageable pageable = {process, region, context};

    return tracker_scans(process) ? scan_all(process, arguments, pass_on_pageable, &pageable) : 0;
}

int tracker_see_tracked(const struct process *process, tracker_region region, void *context)
{
    struct pm_scan_arg arguments = {.category_mask = PAGE_IS_WPALLOWED, .category_anyof_mask = WITH_CONTENTS};

    if (used != TRACKING_WP_ASYNC)
        return pagemap_see_contents(process, region, context);
    return process->is_compared ? see_contents(process, region, context)
                                : scan_all(process, arguments, region, context);
}

struct holes {
    tracker_region region;
    void *context;
};

/* A swapped-out page has contents; a guard is seen as swapped out, and has none. */
static int pass_on_hole(void *context, uint64_t start, uint64_t end, uint64_t categories)
{
    const struct holes *holes = context;

    if ((categories & PAGE_IS_SWAPPED) && !(categories & PAGE_IS_GUARD))
        return 0;
    return holes->region(holes->context, start, end, categories);
}

int tracker_see_holes(const struct process *process, tracker_region region, void *context)
{
    struct holes holes = {region, context};
    struct pm_scan_arg arguments = {.category_inverted = PAGE_IS_PRESENT,
                                    .category_mask = PAGE_IS_PRESENT,
                                    .return_mask = PAGE_IS_SWAPPED};
    uint64_t end = 0;
    int error = 0;

    if (used != TRACKING_WP_ASYNC)
        return pagemap_see_holes(process, region, context);
    for (size_t i = 0; i < process->mappings.count && !error; i++) {
        const struct mapping *mapping = &process->mappings.list[i];

        if (mapping->start > end)
            error = region(context, end, mapping->start, 0);
        end = mapping->end;
    }
    if (!error)
        error = region(context, end, PROCESS_ADDRESS_END, 0);
    return error ? error : scan_all(process, arguments, pass_on_hole, &holes);
}

void tracker_close(struct process *process)
{
    close_one(&process->userfaultfd);
    close_one(&process->pagemap);
    close_one(&process->memory);
    mappings_free(&process->mappings);
    page_set_free(&process->sent);
    page_set_free(&process->again);
    page_set_free(&process->owed);
    if (process->sums) {
        page_sums_free(process->sums);
        free(process->sums);
        process->sums = NULL;
    }
}
