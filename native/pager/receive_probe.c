/* See receive_probe.h. */
#include "receive_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FAILED = 1, PAGE = 4096 };

static int report_error(const char *what, int error)
{
    fprintf(stderr, "wherry-pager receive: %s: %s\n", what, strerror(error));
    return FAILED;
}

/*
 * Missing pages and events are Linux 4.11. Later are UFFDIO_CONTINUE, by which fill.c learns whether an address is mapped
 * (here it is not), and waiting for nanoseconds.
 */
int receive_probe(void)
{
    struct uffdio_api api = {.api = UFFD_API,
                             .features = UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP |
                                         UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP};
    struct uffdio_continue nothing = {.range = {UINT64_C(1) << 20, PAGE}};
    int userfaultfd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

    if (userfaultfd < 0)
        return report_error("userfaultfd", errno);
    if (ioctl(userfaultfd, UFFDIO_API, &api))
        return report_error("events of userfaultfd (Linux 4.11)", errno);
    if (!ioctl(userfaultfd, UFFDIO_CONTINUE, &nothing) || errno != ENOENT)
        return report_error("UFFDIO_CONTINUE (Linux 5.13)", errno);
    if (syscall(SYS_epoll_pwait2, -1, NULL, 1, NULL, NULL, 0) >= 0 || errno == ENOSYS)
        return report_error("epoll_pwait2 (Linux 5.11)", errno);
    close(userfaultfd);
    return 0;
}
