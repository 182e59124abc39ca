/*
 * Asynchronous write protection and the scan of page tables (Linux 6.7 and later), as far as we use them; the headers of
 * distributions are older. From include/uapi/linux/{userfaultfd,fs}.h.
 */
#ifndef WHERRY_PAGER_WP_ASYNC_H
#define WHERRY_PAGER_WP_ASYNC_H

#include <stdint.h>
#include <sys/ioctl.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC (1 << 15)
#endif

#ifndef PAGEMAP_SCAN
#define PAGE_IS_WPALLOWED (1 << 0) /* the mapping is registered */
#define PAGE_IS_WRITTEN (1 << 1)   /* not protected: written, dropped or never touched since the last protection */
#define PAGE_IS_PRESENT (1 << 3)
#define PAGE_IS_SWAPPED (1 << 4)
#define PAGE_IS_PFNZERO (1 << 5) /* the shared page of zeros */
#define PM_SCAN_WP_MATCHING (1 << 0)
#define PM_SCAN_CHECK_WPASYNC (1 << 1)

struct page_region {
    uint64_t start, end, categories;
};

struct pm_scan_arg {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};

#define PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)
#endif

#ifndef PAGE_IS_GUARD
#define PAGE_IS_GUARD (1 << 8) /* MADV_GUARD_INSTALL, reported since Linux 6.15: it has no contents */
#endif

#endif
