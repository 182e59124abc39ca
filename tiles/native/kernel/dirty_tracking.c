/* See dirty_tracking.h. */
#include "dirty_tracking.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../shared/fault_injection.h"

/* Newer than the headers of the oldest system that we build on. */
#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM (1 << 12)
#endif
#ifndef UFFD_FEATURE_WP_UNPOPULATED
#define UFFD_FEATURE_WP_UNPOPULATED (1 << 13)
#endif
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC (1 << 15)
#endif
#define FEATURES (UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_WP_UNPOPULATED | UFFD_FEATURE_WP_ASYNC)

struct scan { /* struct pm_scan_arg of linux/fs.h */
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted, category_mask,
        category_anyof_mask, return_mask;
};
struct scan_region { uint64_t start, end, categories; };

#define SCAN_PAGEMAP _IOWR('f', 16, struct scan)
#define SCAN_PROTECT 1       /* PM_SCAN_WP_MATCHING */
#define SCAN_ONLY_WATCHED 2  /* PM_SCAN_CHECK_WPASYNC */
#define SCAN_WRITTEN 2       /* PAGE_IS_WRITTEN */
#define SCAN_REGIONS 64      /* answers of one call */

static uint64_t user(const struct dirty_tracking *tracking)
{
    return USER_BASE + tracking->from;
}

static int watch(int fd, uint64_t address, uint64_t size)
{
    struct uffdio_register range = {.range = {address, size}, .mode = UFFDIO_REGISTER_MODE_WP};
    struct uffdio_writeprotect protect = {.range = {address, size}, .mode = UFFDIO_WRITEPROTECT_MODE_WP};

    return ioctl(fd, UFFDIO_REGISTER, &range) < 0 || ioctl(fd, UFFDIO_WRITEPROTECT, &protect) < 0 ? -errno : 0;
}

static int open_fault_fd(void)
{
    struct uffdio_api api = {.api = UFFD_API, .features = FEATURES};
    int fd, error;

    if (fault_is("tracking:mprotect") || fault_is("tracking:none"))
        return -ENOSYS;
    fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    error = ioctl(fd, UFFDIO_API, &api) < 0 ? -errno : 0;
    if (error < 0)
        close(fd);
    return error < 0 ? error : fd;
}

/* One call of PAGEMAP_SCAN, at most SCAN_REGIONS answers from *at on. Returns their count or negative errno. */
static int scan_once(int fd, uint64_t *at, uint64_t end, struct scan_region regions[SCAN_REGIONS])
{
    struct scan scan = {
        .size = sizeof(scan), .flags = SCAN_PROTECT | SCAN_ONLY_WATCHED, .start = *at, .end = end,
        .vec = (uintptr_t)regions, .vec_len = SCAN_REGIONS,
        .category_mask = SCAN_WRITTEN, .return_mask = SCAN_WRITTEN,
    };
    int count = ioctl(fd, SCAN_PAGEMAP, &scan);

    *at = scan.walk_end;
    return count < 0 ? -errno : count;
}

static void scan_mapping(int fd, uint64_t base, uint32_t from, uint64_t written[WRITTEN_WORDS])
{
    struct scan_region regions[SCAN_REGIONS];

    for (uint64_t at = base + from; at < base + USER_SIZE; ) {
        int count = scan_once(fd, &at, base + USER_SIZE, regions);

        if (count < 0) { /* it has worked before; should it ever not, nothing may be missed */
            memset(written, 0xff, WRITTEN_WORDS * sizeof(*written));
            return;
        }
        for (int i = 0; i < count; i++)
            for (uint64_t page = (regions[i].start - base) / PAGE_SIZE; page < (regions[i].end - base) / PAGE_SIZE; page++)
                written[page / 64] |= 1ull << page % 64;
    }
}

static bool begin_userfaultfd(struct dirty_tracking *tracking)
{
    struct scan_region regions[SCAN_REGIONS];
    uint64_t size = USER_SIZE - tracking->from, at = user(tracking);

    tracking->fault_fd = open_fault_fd();
    if (tracking->fault_fd < 0)
        return false;
    tracking->map_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (tracking->map_fd >= 0 && watch(tracking->fault_fd, user(tracking), size) == 0 &&
        watch(tracking->fault_fd, (uintptr_t)tracking->image + tracking->from, size) == 0 &&
        scan_once(tracking->map_fd, &at, user(tracking), regions) >= 0)
        return true;
    tracking->on = true;
    tracking->kind = TRACKING_USERFAULTFD;
    dirty_tracking_end(tracking);
    return false;
}

/* Stacks' guard pages stay as they are: only writable pages are made read-only, and writable again. */
static bool is_guard(uint32_t offset)
{
    return offset >= STACKS_OFFSET && (offset - STACKS_OFFSET) % STACK_SIZE == 0;
}

static bool protect_page(const struct dirty_tracking *tracking, uint32_t page, int protection)
{
    uint32_t offset = page * PAGE_SIZE;

    return mprotect(tracking->image + offset, PAGE_SIZE, protection) == 0 &&
           (is_guard(offset) || mprotect((void *)(uintptr_t)(USER_BASE + offset), PAGE_SIZE, protection) == 0);
}

static bool protect_all(const struct dirty_tracking *tracking, int protection)
{
    bool done = mprotect(tracking->image + tracking->from, USER_SIZE - tracking->from, protection) == 0 &&
                mprotect((void *)(uintptr_t)user(tracking), STACKS_OFFSET - tracking->from, protection) == 0;

    for (uint32_t stack = STACKS_OFFSET; done && stack < USER_SIZE; stack += STACK_SIZE)
        done = mprotect((void *)(uintptr_t)(USER_BASE + stack + PAGE_SIZE), STACK_SIZE - PAGE_SIZE, protection) == 0;
    return done;
}

static bool begin_mprotect(struct dirty_tracking *tracking)
{
    if (fault_is("tracking:none"))
        return false;
    memset((void *)tracking->written, 0, sizeof(tracking->written));
    tracking->kind = TRACKING_MPROTECT;
    tracking->on = true;
    if (protect_all(tracking, PROT_READ))
        return true;
    dirty_tracking_end(tracking);
    return false;
}

enum tracking_kind dirty_tracking_begin(struct dirty_tracking *tracking, uint8_t *image, uint32_t from)
{
    tracking->image = image;
    tracking->from = from;
    tracking->fault_fd = tracking->map_fd = -1;
    tracking->kind = TRACKING_NONE;
    if (begin_userfaultfd(tracking))
        tracking->kind = TRACKING_USERFAULTFD;
    else if (!begin_mprotect(tracking))
        tracking->kind = TRACKING_NONE;
    tracking->on = tracking->kind != TRACKING_NONE;
    return tracking->kind;
}

static void scan_mprotect(struct dirty_tracking *tracking, uint64_t written[WRITTEN_WORDS])
{
    for (uint32_t word = 0; word < WRITTEN_WORDS; word++) {
        /* Taken first, protected then: a write in between is copied after both. */
        uint64_t bits = atomic_exchange(&tracking->written[word], 0);

        written[word] |= bits;
        for (; bits; bits &= bits - 1)
            protect_page(tracking, word * 64 + (uint32_t)__builtin_ctzll(bits), PROT_READ);
    }
}

void dirty_tracking_scan(struct dirty_tracking *tracking, uint64_t written[WRITTEN_WORDS])
{
    if (tracking->kind == TRACKING_USERFAULTFD) {
        scan_mapping(tracking->map_fd, USER_BASE, tracking->from, written);
        scan_mapping(tracking->map_fd, (uintptr_t)tracking->image, tracking->from, written);
    } else if (tracking->kind == TRACKING_MPROTECT) {
        scan_mprotect(tracking, written);
    } else {
        memset(written, 0xff, WRITTEN_WORDS * sizeof(*written));
    }
}

void dirty_tracking_end(struct dirty_tracking *tracking)
{
    if (!tracking->on)
        return;
    if (tracking->kind == TRACKING_USERFAULTFD) {
        close(tracking->fault_fd); /* lifts the protection too */
        if (tracking->map_fd >= 0)
            close(tracking->map_fd);
    } else {
        protect_all(tracking, PROT_READ | PROT_WRITE); /* fails half-way when the process is gone, which is enough */
    }
    tracking->on = false;
}

bool dirty_tracking_fault(struct dirty_tracking *tracking, uint64_t address)
{
    uint64_t offset = address - USER_BASE;
    uint32_t page;

    if (tracking->kind != TRACKING_MPROTECT)
        return false;
    if (!tracking->on) /* it ended between the fault and here: the page can be written by now, or it never could */
        return madvise((void *)(uintptr_t)(address & ~(uint64_t)(PAGE_SIZE - 1)), PAGE_SIZE, MADV_POPULATE_WRITE) == 0;
    if (offset >= USER_SIZE)
        offset = address - (uintptr_t)tracking->image;
    else if (is_guard((uint32_t)offset & ~(uint32_t)(PAGE_SIZE - 1)))
        return false;
    if (offset < tracking->from || offset >= USER_SIZE)
        return false;
    page = (uint32_t)offset / PAGE_SIZE;
    /* Marked last: a scan in between would take the mark and leave a page that is written without one. */
    if (!protect_page(tracking, page, PROT_READ | PROT_WRITE))
        return false;
    atomic_fetch_or(&tracking->written[page / 64], 1ull << page % 64);
    return true;
}

enum tracking_kind dirty_tracking_probe(const char **lacks)
{
    struct scan_region regions[SCAN_REGIONS];
    int fd = open_fault_fd(), map_fd, count;
    uint64_t at = 0;

    *lacks = "userfaultfd with asynchronous write protection (Linux 6.7, and root)";
    if (fd < 0)
        return TRACKING_MPROTECT;
    close(fd);
    map_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    count = map_fd < 0 ? -errno : scan_once(map_fd, &at, PAGE_SIZE, regions);
    if (map_fd >= 0)
        close(map_fd);
    *lacks = count < 0 ? "PAGEMAP_SCAN (Linux 6.7)" : NULL;
    return count < 0 ? TRACKING_MPROTECT : TRACKING_USERFAULTFD;
}
