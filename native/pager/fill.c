/* See fill.h. */
#include "fill.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    BATCH = 16,              /* pages; the reader of the descriptor waits so long */
    FAULT_PAGES = 4,         /* the pages next to a fault are wanted soon */
    HINT_PAGES = 64,
    PAUSE_NS = 50000,        /* the thread that caused an event has to run before anybody can copy again */
    FETCH_PAUSE_NS = 1000000, /* all pages that came from the source are filled in */
};

static const uint64_t PAGE = STREAM_PAGE;

struct process *process_new(uint32_t pid, int userfault)
{
    struct process *process = calloc(1, sizeof(*process));
    pthread_rwlockattr_t attributes;

    if (!process)
        return NULL;
    process->pid = pid;
    process->userfault = userfault;
    atomic_init(&process->references, 1);
    pthread_mutex_init(&process->choosing, NULL);
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&process->lock, &attributes);
    pthread_rwlockattr_destroy(&attributes);
    return process;
}

void process_get(struct process *process)
{
    atomic_fetch_add(&process->references, 1);
}

void process_put(struct process *process)
{
    if (atomic_fetch_sub(&process->references, 1) != 1)
        return;
    if (process->userfault >= 0)
        close(process->userfault);
    address_map_free(&process->map);
    pthread_rwlock_destroy(&process->lock);
    pthread_mutex_destroy(&process->choosing);
    free(process->faults);
    free(process);
}

/* How many pages were copied, or negative errno when it was none. */
static int copy_pages(int userfault, uint64_t to, const uint8_t *from, unsigned count)
{
    struct uffdio_copy copy = {.dst = to, .src = (uintptr_t)from, .len = count * PAGE};

    if (!ioctl(userfault, UFFDIO_COPY, &copy))
        return (int)count;
    return copy.copy > 0 ? (int)((uint64_t)copy.copy / PAGE) : -errno;
}

static void wake(int userfault, uint64_t address)
{
    struct uffdio_range range = {address, PAGE};

    ioctl(userfault, UFFDIO_WAKE, &range);
}

/* This request is never granted for private memory; its error shows what the kernel checked before. Negative errno. */
static int ask(const struct process *process, uint64_t address)
{
    struct uffdio_continue nothing = {.range = {address, PAGE}};

    return ioctl(process->userfault, UFFDIO_CONTINUE, &nothing) < 0 ? -errno : 0;
}

static bool is_changing(const struct process *process)
{
    return ask(process, 1 << 20) == -EAGAIN;
}

static bool is_mapped(void *process, uint64_t address)
{
    return ask(process, address) != -ENOENT;
}

int fill_resolve_events(struct process *process)
{
    if (!process->map.events_pending)
        return 0;
    return is_changing(process) ? -EAGAIN : address_map_resolve_events(&process->map, is_mapped, process);
}

/* After page `at` could not be copied: how many pages are settled by that, or negative errno. */
static int after_error(struct process *process, struct claim *claim, unsigned at, unsigned *step, int error)
{
    switch (error) {
    case -EEXIST:
        wake(process->userfault, claim->address + at * PAGE);
        return 1;
    case -ENOENT: /* the kernel looks for the mapping before it looks whether an event is under way */
    case -EINVAL:
        if (is_changing(process))
            return -EAGAIN;
        if (*step > 1) {
            *step /= 2;
            return 0;
        }
        claim_unmapped(claim, at);
        wake(process->userfault, claim->address + at * PAGE);
        return 1;
    case -ENOSPC:
        return -ESRCH;
    case -ENOMEM: /* of the node's memory group: it may pass */
    case -EINTR:
        return -EAGAIN;
    default:
        return error;
    }
}

/* 0: all pages of the claim are settled. Else negative errno, and the others are given back. */
static int fill_claim(struct fill *fill, struct process *process, struct claim *claim)
{
    unsigned done = 0, step = claim->count;
    const uint8_t *bytes = claim_bytes(claim);
    int result = 0;

    while (result >= 0 && done < claim->count) {
        unsigned count = step < claim->count - done ? step : claim->count - done;

        result = copy_pages(process->userfault, claim->address + done * PAGE, bytes + done * PAGE, count);
        if (result > 0)
            fill->bytes += (unsigned)result * PAGE;
        else
            result = after_error(process, claim, done, &step, result);
        if (result > 0)
            done += (unsigned)result;
    }
    claim_finish(&process->map.left, claim, done);
    return result < 0 ? result : 0;
}

/* The result of the copy for a fault: 0 when the waiting thread continues, or an error to act on. */
static int answered(const struct process *process, uint64_t address, int result)
{
    switch (result < 0 ? -result : 0) {
    case 0:
        return 0;
    case EEXIST:
    case ENOENT: /* no longer mapped: the thread sees that for itself, and a moved page is not lost */
    case EINVAL:
        wake(process->userfault, address);
        return 0;
    case EAGAIN:
    case EINTR:
    case ENOMEM:
        return -EAGAIN;
    case ESRCH:
    case ENOSPC:
        return -ESRCH;
    default:
        return result;
    }
}

static int zero_page(const struct process *process, uint64_t address)
{
    struct uffdio_zeropage zero = {.range = {address, PAGE}};

    return answered(process, address, ioctl(process->userfault, UFFDIO_ZEROPAGE, &zero) < 0 ? -errno : 1);
}

static int fill_one(struct fill *fill, struct process *process, struct extent *extent, uint64_t address)
{
    struct claim claim;
    int result, page = extent_lacks(extent, address);

    if (page < 0)
        return zero_page(process, address);
    if (fetch_waits(fill->fetch, extent->chunk, (unsigned)page))
        return -EINPROGRESS;
    extent_claim_here(extent, address, FAULT_PAGES, &claim);
    result = copy_pages(process->userfault, address, claim_bytes(&claim), claim.count);
    if (result < 0 && claim.count > 1) /* perhaps the mapping ends amid them */
        result = copy_pages(process->userfault, address, claim_bytes(&claim), 1);
    if (result > 0)
        fill->bytes += (unsigned)result * PAGE;
    claim_finish(&process->map.left, &claim, result > 0 ? (unsigned)result : result == -EEXIST);
    return answered(process, address, result);
}

int fill_fault(struct fill *fill, struct process *process, uint64_t address)
{
    struct extent *extent;
    int result = fill_resolve_events(process);

    if (result < 0)
        return result;
    extent = address_map_find(&process->map, address);
    result = extent ? fill_one(fill, process, extent, address) : zero_page(process, address);
    if (!result && address_map_find(&process->map, address + PAGE))
        process->hint = address + PAGE;
    return result;
}

static void pause_for(int64_t ns)
{
    struct timespec time = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};

    nanosleep(&time, NULL);
}

static void keep_to_rate(struct fill *fill, uint64_t bytes)
{
    struct timespec time;
    int64_t now, free_ns, next;

    if (!fill->rate)
        return;
    clock_gettime(CLOCK_MONOTONIC, &time);
    now = (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
    free_ns = fill->free_ns;
    do
        next = (free_ns > now ? free_ns : now) + (int64_t)(bytes * 1000000000 / fill->rate);
    while (!atomic_compare_exchange_weak(&fill->free_ns, &free_ns, next));
    pause_for(next - now);
}

/* As address_map_next, of extents that lack a page whose contents are here. */
static struct extent *next_here(const struct fill *fill, struct process *process, uint64_t address, int recent)
{
    struct extent *extent = address_map_next(&process->map, address, recent);
    struct claim claim;

    if (!fill->fetch->left)
        return extent;
    while (extent && !extent_claim_here(extent, extent->start, 1, &claim))
        extent = address_map_next(&process->map, extent_end(extent), recent);
    if (extent)
        claim_finish(&process->map.left, &claim, 0);
    return extent;
}

/* Where this filler begins, and where it ends. The lock is held for reading. */
static bool choose(const struct fill *fill, struct process *process, uint64_t *at, uint64_t *end)
{
    struct extent *extent = NULL;

    *at = atomic_exchange(&process->hint, 0);
    if (*at && (extent = address_map_next(&process->map, *at, 0)) && extent->start < *at + HINT_PAGES * PAGE) {
        *end = *at + HINT_PAGES * PAGE;
        return true;
    }
    pthread_mutex_lock(&process->choosing);
    if (!process->recent_done && !(extent = next_here(fill, process, process->cursor, 1))) {
        process->recent_done = true;
        process->cursor = 0;
    }
    if (process->recent_done && !(extent = next_here(fill, process, process->cursor, 0)))
        extent = next_here(fill, process, 0, 0);
    if (extent) {
        *at = extent->start;
        *end = process->cursor = extent_end(extent);
    }
    pthread_mutex_unlock(&process->choosing);
    return extent != NULL;
}

/* A few pages in [*at, end). 1: some; 0: there are none; or negative errno. */
static int fill_batch(struct fill *fill, struct process *process, uint64_t *at, uint64_t end)
{
    struct extent *extent;
    struct claim claim;
    int result = 0;

    pthread_rwlock_rdlock(&process->lock);
    if (process->map.events_pending)
        result = -EAGAIN;
    while (!result && !process->gone && (extent = address_map_next(&process->map, *at, 0)) && extent->start < end) {
        if (!extent_claim_here(extent, *at, BATCH, &claim)) {
            *at = extent_end(extent);
            continue;
        }
        *at = claim.address + claim.count * PAGE;
        result = fill_claim(fill, process, &claim);
        result = result < 0 ? result : 1;
        break;
    }
    pthread_rwlock_unlock(&process->lock);
    return result;
}

static void fill_some(struct fill *fill, struct process *process)
{
    uint64_t at, end;
    bool any = false;
    int result = 0;

    pthread_rwlock_rdlock(&process->lock);
    if (!process->gone && choose(fill, process, &at, &end))
        result = 1;
    pthread_rwlock_unlock(&process->lock);
    while (result > 0 && (result = fill_batch(fill, process, &at, end)) > 0) {
        any = true;
        keep_to_rate(fill, BATCH * PAGE);
        if (process->hint)
            break;
    }
    if (result == -ESRCH)
        process->gone = true;
    else if (result < 0 && result != -EAGAIN)
        fill->failure = result;
    if (result == -ESRCH || !process->map.left || fill->failure)
        eventfd_write(fill->notify, 1);
    else if (!any)
        pause_for(fill->fetch->left ? FETCH_PAUSE_NS : PAUSE_NS);
}

/* Processes take turns. Waits until one lacks pages; NULL at the end. Adds a reference. */
static struct process *next_process(struct fill *fill)
{
    struct process *found = NULL;

    pthread_mutex_lock(&fill->lock);
    while (!fill->end && !found) {
        uint32_t candidates = 0, turn;

        for (struct process *process = fill->processes; fill->open && process; process = process->next)
            candidates += !process->gone && process->map.left;
        turn = candidates ? fill->turn++ % candidates : 0;
        for (struct process *process = fill->processes; candidates && !found && process; process = process->next)
            if (!process->gone && process->map.left && turn-- == 0)
                found = process;
        if (!found && !candidates)
            pthread_cond_wait(&fill->work, &fill->lock);
    }
    if (fill->end)
        found = NULL;
    if (found)
        process_get(found);
    pthread_mutex_unlock(&fill->lock);
    return found;
}

/*
 * The caller of this program has a raised priority; filling in the background runs beside the node. Faults are another
 * thread's.
 */
static void take_ordinary_priority(void)
{
    id_t self = (id_t)syscall(SYS_gettid);

    if (getpriority(PRIO_PROCESS, self) < 0)
        setpriority(PRIO_PROCESS, self, 0);
}

static void *run(void *argument)
{
    struct fill *fill = argument;
    struct process *process;

    take_ordinary_priority();
    while ((process = next_process(fill))) {
        fill_some(fill, process);
        process_put(process);
    }
    return NULL;
}

int fill_start(struct fill *fill, struct fetch *fetch, unsigned threads, uint64_t rate, int notify)
{
    fill->fetch = fetch;
    pthread_mutex_init(&fill->lock, NULL);
    pthread_cond_init(&fill->work, NULL);
    fill->rate = rate;
    fill->notify = notify;
    while (fill->count < threads) {
        int error = pthread_create(&fill->threads[fill->count], NULL, run, fill);

        if (error)
            return -error;
        fill->count++;
    }
    return 0;
}

void fill_end(struct fill *fill)
{
    pthread_mutex_lock(&fill->lock);
    fill->end = true;
    pthread_cond_broadcast(&fill->work);
    pthread_mutex_unlock(&fill->lock);
    for (unsigned i = 0; i < fill->count; i++)
        pthread_join(fill->threads[i], NULL);
}

void fill_open(struct fill *fill)
{
    pthread_mutex_lock(&fill->lock);
    fill->open = true;
    pthread_cond_broadcast(&fill->work);
    pthread_mutex_unlock(&fill->lock);
}

void fill_add(struct fill *fill, struct process *process)
{
    pthread_mutex_lock(&fill->lock);
    process->next = fill->processes;
    fill->processes = process;
    pthread_cond_broadcast(&fill->work);
    pthread_mutex_unlock(&fill->lock);
}

void fill_remove(struct fill *fill, struct process *process)
{
    struct process **at = &fill->processes;

    pthread_mutex_lock(&fill->lock);
    while (*at != process)
        at = &(*at)->next;
    *at = process->next;
    pthread_mutex_unlock(&fill->lock);
    process_put(process);
}
