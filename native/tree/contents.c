/*
 * The contents of files; see source.h.
 *
 * The main thread opens files, finds the data in them, and hands it on; the others read, compare and send. While the
 * node runs one of them works, as the node has the better use for processors; in the last pass all do. A file of one
 * window is done where it was opened.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <unistd.h>

#include "source.h"

enum { THREADS_MAX = 4, UNIT_WINDOWS = 16, UNITS = 32 };

struct open_file {
    int fd;
    atomic_uint users;
    uint64_t size;
    struct inode *inode;
};

/* Windows that follow each other, with a bit for each page that is no hole. */
struct unit {
    struct open_file *file;
    uint64_t first;
    unsigned count;
    uint64_t pages[UNIT_WINDOWS];
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t come, gone;
    struct unit units[UNITS];
    unsigned first, count, working;
    unsigned active, threads; /* threads that take units */
    int error;
    struct source *source;
} work = {.lock = PTHREAD_MUTEX_INITIALIZER, .come = PTHREAD_COND_INITIALIZER, .gone = PTHREAD_COND_INITIALIZER};

/* As many bits, from the lowest on. */
static uint64_t ones(uint64_t count)
{
    return count >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << count) - 1;
}

static uint64_t pages_of(uint64_t bytes)
{
    return bytes / PAGE_SUMS_PAGE + !!(bytes % PAGE_SUMS_PAGE);
}

/* Bytes that are not there, because the file has become shorter, are zero. */
static int read_part(int fd, uint8_t *to, size_t count, uint64_t at)
{
    while (count) {
        ssize_t got = pread(fd, to, count, (off_t)at);

        if (got < 0 && errno != EINTR)
            return -errno;
        if (!got)
            memset(to, 0, count);
        if (!got)
            return 0;
        if (got > 0)
            to += got, at += (uint64_t)got, count -= (size_t)got;
    }
    return 0;
}

/* The end of the run of pages from `first` on that are all in `pages`, or all not. */
static unsigned run_end(uint64_t pages, unsigned first)
{
    unsigned end = first + 1;

    while (end < PAGE_SUMS_PAGES && (pages >> end & 1) == (pages >> first & 1))
        end++;
    return end;
}

static int read_window(const struct open_file *file, uint64_t window, uint64_t pages, uint8_t *bytes)
{
    uint64_t at = window * PAGE_SUMS_WINDOW;
    int error = 0;

    for (unsigned first = 0, end; first < PAGE_SUMS_PAGES && !error; first = end) {
        uint64_t offset = at + (uint64_t)first * PAGE_SUMS_PAGE;
        uint8_t *to = bytes + (size_t)first * PAGE_SUMS_PAGE;
        size_t count;

        end = run_end(pages, first);
        if (!(pages >> first & 1))
            continue;
        count = (size_t)(end - first) * PAGE_SUMS_PAGE;
        memset(to + count - PAGE_SUMS_PAGE, 0, PAGE_SUMS_PAGE);
        error = offset < file->size
                    ? read_part(file->fd, to, file->size - offset < count ? (size_t)(file->size - offset) : count, offset)
                    : 0;
    }
    return error;
}

static int send_pages(struct source *source, uint64_t number, uint64_t at, size_t count, const uint8_t *bytes)
{
    uint8_t hole[sizeof(uint64_t)];

    if (bytes)
        return output_put(&source->output, 'D', number, at, bytes, (uint32_t)count);
    wire_put_number(hole, count);
    return output_put(&source->output, 'H', number, at, hole, sizeof(hole));
}

/* Sends the pages of `changed`, in runs: those of `data` with their contents, others as holes. */
static int send_changed(struct source *source, uint64_t number, uint64_t at, uint64_t changed, uint64_t data,
                        const uint8_t *bytes)
{
    int error = 0;

    for (unsigned first = 0, end; first < PAGE_SUMS_PAGES && !error; first = end) {
        unsigned other = run_end(data, first);
        size_t offset = (size_t)first * PAGE_SUMS_PAGE;

        end = run_end(changed, first);
        end = end < other ? end : other;
        if (changed >> first & 1)
            error = send_pages(source, number, at + offset, (size_t)(end - first) * PAGE_SUMS_PAGE,
                             data >> first & 1 ? bytes + offset : NULL);
    }
    return error;
}

static int compare_window(struct source *source, const struct open_file *file, uint64_t window, uint64_t pages,
                          uint8_t *bytes)
{
    struct page_sum *sums = page_sums_find(&file->inode->sums, window), now[PAGE_SUMS_PAGES] = {0};
    uint64_t changed = 0, data = 0;
    int error = read_window(file, window, pages, bytes);

    if (error)
        return error;
    for (unsigned i = 0; i < PAGE_SUMS_PAGES; i++) {
        if (pages >> i & 1)
            now[i] = page_sum_of(bytes + (size_t)i * PAGE_SUMS_PAGE);
        data |= (uint64_t)!page_sum_is_zero(now[i]) << i;
        changed |= (uint64_t)!page_sum_equals(now[i], sums ? sums[i] : (struct page_sum){0}) << i;
    }
    if (!changed)
        return 0;
    if (!sums && !(sums = page_sums_make(&file->inode->sums, window)))
        return -ENOMEM;
    memcpy(sums, now, sizeof(now));
    return send_changed(source, file->inode->number, window * PAGE_SUMS_WINDOW, changed, data, bytes);
}

static void put_file(struct open_file *file)
{
    if (atomic_fetch_sub(&file->users, 1) > 1)
        return;
    close(file->fd);
    free(file);
}

static int compare_unit(const struct unit *unit, uint8_t *bytes)
{
    int error = 0;

    for (unsigned i = 0; i < unit->count && !error; i++)
        error = compare_window(work.source, unit->file, unit->first + i, unit->pages[i], bytes);
    put_file(unit->file);
    return error;
}

static void *run(void *number)
{
    uint8_t *bytes = aligned_alloc(PAGE_SUMS_PAGE, PAGE_SUMS_WINDOW);

    pthread_mutex_lock(&work.lock);
    for (;;) {
        struct unit unit;
        int error;

        while (!work.count || (uintptr_t)number >= work.active)
            pthread_cond_wait(&work.come, &work.lock);
        unit = work.units[work.first];
        work.first = (work.first + 1) % UNITS;
        work.count--, work.working++;
        pthread_cond_broadcast(&work.gone);
        pthread_mutex_unlock(&work.lock);
        error = bytes ? compare_unit(&unit, bytes) : -ENOMEM;
        pthread_mutex_lock(&work.lock);
        work.working--;
        work.error = work.error ? work.error : error;
        pthread_cond_broadcast(&work.gone);
    }
    return NULL;
}

int contents_start(struct source *source)
{
    cpu_set_t processors;
    unsigned count = sched_getaffinity(0, sizeof(processors), &processors) ? 1 : (unsigned)CPU_COUNT(&processors);

    work.source = source;
    work.threads = count < THREADS_MAX ? count : THREADS_MAX;
    for (uintptr_t i = 0; i < work.threads; i++) {
        pthread_t thread;
        int error = pthread_create(&thread, NULL, run, (void *)i);

        if (error)
            return -error;
        pthread_detach(thread);
    }
    return 0;
}

/* Hands a unit on, if it has any window; it is empty afterwards. */
static int hand_on(struct unit *unit)
{
    int error;

    if (!unit->count)
        return 0;
    atomic_fetch_add(&unit->file->users, 1);
    pthread_mutex_lock(&work.lock);
    while (work.count == UNITS)
        pthread_cond_wait(&work.gone, &work.lock);
    work.units[(work.first + work.count++) % UNITS] = *unit;
    error = work.error;
    pthread_cond_broadcast(&work.come);
    pthread_mutex_unlock(&work.lock);
    *unit = (struct unit){.file = unit->file};
    return error;
}

static int await_units(void)
{
    int error;

    pthread_mutex_lock(&work.lock);
    while (work.count || work.working)
        pthread_cond_wait(&work.gone, &work.lock);
    error = work.error;
    pthread_mutex_unlock(&work.lock);
    return error;
}

/* Windows from `from` up to `until` have no data. */
static int send_gap(struct source *source, struct inode *inode, uint64_t from, uint64_t until)
{
    uint64_t first = from * PAGE_SUMS_PAGES, end = page_sums_clear(&inode->sums, first, until * PAGE_SUMS_PAGES);

    return end ? send_pages(source, inode->number, first * PAGE_SUMS_PAGE, (size_t)(end - first) * PAGE_SUMS_PAGE, NULL) : 0;
}

/* Adds pages that are data, in windows from that of `unit` on. */
static int add_pages(struct source *source, struct unit *unit, uint64_t *next, uint64_t from, uint64_t until)
{
    int error = 0;

    while (from < until && !error) {
        uint64_t window = from / PAGE_SUMS_PAGES, first = from % PAGE_SUMS_PAGES, end = (window + 1) * PAGE_SUMS_PAGES;
        uint64_t count = (end < until ? end : until) - from;

        if (window >= *next && (window > *next || unit->count == UNIT_WINDOWS)) {
            error = hand_on(unit);
            if (!error)
                error = send_gap(source, unit->file->inode, *next, window);
            *next = window;
        }
        if (window == *next) {
            unit->first = unit->count ? unit->first : window;
            unit->pages[unit->count++] = 0;
            *next = window + 1;
        }
        unit->pages[unit->count - 1] |= ones(count) << first;
        from += count;
    }
    return error;
}

/* Goes through the data of the file. */
static int compare_large(struct source *source, struct open_file *file)
{
    struct unit unit = {.file = file};
    uint64_t next = 0, at = 0; /* the first window that was not handed on, an offset */
    int error = 0;

    while (at < file->size && !error) {
        off_t data = lseek(file->fd, (off_t)at, SEEK_DATA), hole;

        if ((data < 0 && errno == ENXIO) || data >= (off_t)file->size)
            break;
        if (data < 0 || (hole = lseek(file->fd, data, SEEK_HOLE)) < 0)
            return errno == ENXIO ? 0 : -errno; /* it has just become shorter */
        at = (uint64_t)hole < file->size ? (uint64_t)hole : file->size; /* it may have become longer */
        error = add_pages(source, &unit, &next, (uint64_t)data / PAGE_SUMS_PAGE, pages_of(at));
    }
    if (!error)
        error = hand_on(&unit);
    return error ? error : send_gap(source, file->inode, next, UINT64_MAX / PAGE_SUMS_WINDOW);
}

/* Opened through a descriptor that opens nothing, so that it is a file: a FIFO would wait, a device may do anything. */
static int open_checked(const struct source *source, int directory, const char *name, const struct inode *inode)
{
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOATIME | O_CLOEXEC;
    char path[32];
    struct stat status;
    int fd, opened;

    if ((fd = openat(directory, name, source->is_last ? flags : O_PATH | O_NOFOLLOW | O_CLOEXEC)) < 0)
        return -errno;
    if (fstat(fd, &status) || !S_ISREG(status.st_mode) || status.st_ino != inode->status.st_ino ||
        status.st_dev != inode->status.st_dev) {
        close(fd);
        return -ESTALE;
    }
    if (source->is_last)
        return fd;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    opened = open(path, flags & ~O_NOFOLLOW);
    opened = opened < 0 ? -errno : opened;
    close(fd);
    return opened;
}

static int compare_opened(struct source *source, struct open_file *file, uint8_t *bytes)
{
    struct stat status;
    int error = fstat(file->fd, &status) ? -errno : 0;

    if (error)
        return error;
    file->size = (uint64_t)status.st_size;
    if ((error = send_size(source, file->inode, file->size)))
        return error;
    if (file->size > PAGE_SUMS_WINDOW)
        return compare_large(source, file);
    return compare_window(source, file, 0, ones(pages_of(file->size)), bytes);
}

/* Whether it is as it was when it was compared. Pages that were written before a pass began were clean when that pass
 * compared them, so that the next write to one changes the time. */
static bool is_unchanged(const struct source *source, const struct inode *file)
{
    return source->is_on_disk && !source->compares_all && file->is_settled &&
           nanoseconds(file->changed) == nanoseconds(file->status.st_ctim);
}

static int compare_file(struct source *source, int directory, const char *name, struct inode *inode, uint8_t *bytes)
{
    struct open_file *file;
    int error;

    if (inode->compared == source->pass || (!inode->size && !inode->status.st_size) || is_unchanged(source, inode))
        return 0;
    if (!(file = calloc(1, sizeof(*file))))
        return -ENOMEM;
    atomic_init(&file->users, 1);
    file->inode = inode;
    if ((file->fd = open_checked(source, directory, name, inode)) < 0) {
        error = file->fd;
        free(file);
        return error;
    }
    inode->compared = source->pass;
    inode->changed = inode->status.st_ctim;
    inode->is_settled = source->began - nanoseconds(inode->changed) >= COARSE_NS;
    error = compare_opened(source, file, bytes);
    put_file(file);
    return error;
}

static bool is_missed(const struct source *source, int error)
{
    return !source->is_last && (error == -ENOENT || error == -ESTALE || error == -ELOOP || error == -ENOTDIR ||
                                error == -EACCES || error == -EWOULDBLOCK || error == -EPERM);
}

static int compare_below(struct source *source, const struct inode *inode, int directory, uint8_t *bytes)
{
    int error = 0;

    for (size_t i = 0; i < inode->known.count && !error; i++) {
        const char *name = name_text(&inode->known, &inode->known.list[i]);
        struct inode *below = inode->known.list[i].inode;

        if (S_ISREG(below->status.st_mode))
            error = compare_file(source, directory, name, below, bytes);
        else if (S_ISDIR(below->status.st_mode) && below->known.count) {
            int inner = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC);
            struct stat status;

            error = inner < 0 ? -errno : fstat(inner, &status) ? -errno : 0;
            if (!error)
                error = status.st_ino == below->status.st_ino ? compare_below(source, below, inner, bytes) : -ESTALE;
            if (inner >= 0)
                close(inner);
        }
        error = is_missed(source, error) ? 0 : error;
    }
    return error;
}

int send_contents(struct source *source)
{
    static uint8_t bytes[PAGE_SUMS_WINDOW] __attribute__((aligned(PAGE_SUMS_PAGE)));
    int error, ended;

    pthread_mutex_lock(&work.lock);
    work.active = source->is_last ? work.threads : 1;
    pthread_mutex_unlock(&work.lock);
    error = compare_below(source, source->root, source->directory, bytes);
    ended = await_units();
    return error ? error : ended;
}
