/* See tracking.h. */
#include "tracking.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "inject_userfaultfd.h"
#include "pagemap.h"
#include "wp_async.h"

enum { PAGE = 4096, PAGES = 4, HAS_NOT = 1, WRONG_USAGE = 2 };

static const char *const names[TRACKINGS] = {"wp-async", "comparison"};

const char *tracking_name(enum tracking tracking)
{
    return names[tracking];
}

int tracking_parse(const char *name, enum tracking *tracking)
{
    for (int i = 0; i < TRACKINGS; i++)
        if (!strcmp(name, names[i])) {
            *tracking = (enum tracking)i;
            return 0;
        }
    return -EINVAL;
}

static int fail(int error, const char *what, char *why, size_t size)
{
    error = error ? error : -EIO;
    snprintf(why, size, "%s: %s", what, strerror(-error));
    return error;
}

/* Whether a scan finds exactly the page that was written. 0 or negative errno. */
static int try_scan(int userfaultfd, int pagemap, char *pages)
{
    struct page_region found[PAGES];
    struct uffdio_register request = {.range = {(uintptr_t)pages, PAGES * PAGE}, .mode = UFFDIO_REGISTER_MODE_WP};
    struct pm_scan_arg scan = {.size = sizeof(scan),
                               .flags = PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
                               .start = (uintptr_t)pages,
                               .end = (uintptr_t)pages + PAGES * PAGE,
                               .vec = (uintptr_t)found,
                               .vec_len = PAGES,
                               .category_mask = PAGE_IS_WRITTEN,
                               .category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                               .return_mask = PAGE_IS_WRITTEN};

    memset(pages, 1, PAGES * PAGE);
    if (ioctl(userfaultfd, UFFDIO_REGISTER, &request) || ioctl(pagemap, PAGEMAP_SCAN, &scan) < 0)
        return -errno;
    pages[2 * PAGE] = 2;
    if (ioctl(pagemap, PAGEMAP_SCAN, &scan) != 1 || found[0].start != scan.start + 2 * PAGE ||
        found[0].end != scan.start + 3 * PAGE)
        return -EOPNOTSUPP;
    return 0;
}

static int probe_wp_async(int pagemap, char *pages, char *why, size_t size)
{
    int userfaultfd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY), error;

    if (userfaultfd < 0)
        return fail(-errno, "userfaultfd", why, size);
    if ((error = userfaultfd_set_up(userfaultfd)))
        fail(error, "UFFD_FEATURE_WP_ASYNC (Linux 6.7)", why, size);
    else if ((error = try_scan(userfaultfd, pagemap, pages)))
        fail(error, "PAGEMAP_SCAN (Linux 6.7)", why, size);
    close(userfaultfd);
    return error;
}

static bool read_map(int pagemap, const char *pages, uint64_t entries[PAGES])
{
    off_t place = (off_t)((uintptr_t)pages / PAGE * sizeof(*entries));

    return pread(pagemap, entries, PAGES * sizeof(*entries), place) == (ssize_t)(PAGES * sizeof(*entries));
}

static int probe_comparison(int pagemap, char *pages, char *why, size_t size)
{
    struct iovec here = {pages, PAGE}, there = {pages + PAGE, PAGE};
    uint64_t map[PAGES];

    pages[PAGE] = 1;
    if (!read_map(pagemap, pages, map))
        return fail(-errno, "pagemap", why, size);
    if (!(map[1] & PAGEMAP_PRESENT) || map[2] & (PAGEMAP_PRESENT | PAGEMAP_SWAPPED))
        return fail(-EOPNOTSUPP, "pagemap", why, size);
    if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != PAGE || pages[0] != 1)
        return fail(-errno, "process_vm_readv", why, size);
    return 0;
}

int tracking_probe(enum tracking tracking, char *why, size_t size)
{
    char *pages = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC), error;

    if (pages == MAP_FAILED || pagemap < 0)
        error = fail(-errno, "/proc/self/pagemap", why, size);
    else
        error = (tracking == TRACKING_WP_ASYNC ? probe_wp_async : probe_comparison)(pagemap, pages, why, size);
    if (pagemap >= 0)
        close(pagemap);
    if (pages != MAP_FAILED)
        munmap(pages, PAGES * PAGE);
    return error;
}

/* As tracking_choose; `lacks` has the reason of each way that was tried in vain. */
static int choose(const char *name, enum tracking *tracking, char lacks[TRACKINGS][256])
{
    int first = 0, last = TRACKINGS;

    if (name) {
        if (tracking_parse(name, tracking)) {
            fprintf(stderr, "wherry-pager: no tracking is named %s\n", name);
            return WRONG_USAGE;
        }
        first = (int)*tracking;
        last = first + 1;
    }
    for (int i = first; i < last; i++) {
        *tracking = (enum tracking)i;
        if (!tracking_probe(*tracking, lacks[i], sizeof(lacks[i])))
            return 0;
    }
    for (int i = first; i < last; i++)
        fprintf(stderr, "wherry-pager: %s: %s\n", names[i], lacks[i]);
    return HAS_NOT;
}

int tracking_choose(const char *name, enum tracking *tracking)
{
    char lacks[TRACKINGS][256];

    return choose(name, tracking, lacks);
}

int tracking_tell(const char *name)
{
    char lacks[TRACKINGS][256];
    enum tracking tracking;
    int result = choose(name, &tracking, lacks);

    if (result)
        return result;
    puts(names[tracking]);
    for (int i = 0; i < (int)tracking && !name; i++)
        printf("%s: %s\n", names[i], lacks[i]);
    return 0;
}
