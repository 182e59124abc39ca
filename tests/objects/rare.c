/* Rare kinds of descriptors: some that cannot be moved (check() is never reached), and some that can. */
#include "objects.h"

#include <linux/netlink.h>
#include <linux/perf_event.h>
#include <linux/io_uring.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <sys/fanotify.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static int fd;

static const char *make_io_uring(void)
{
    struct io_uring_params options = {0};

    NEED((fd = (int)syscall(SYS_io_uring_setup, 4, &options)) >= 0);
    return OK;
}
static const char *make_userfaultfd(void) { NEED((fd = (int)syscall(SYS_userfaultfd, 1 | O_CLOEXEC)) >= 0); return OK; }
static const char *make_perf(void)
{
    struct perf_event_attr event = {
        .type = PERF_TYPE_SOFTWARE, .size = sizeof event, .config = PERF_COUNT_SW_TASK_CLOCK,
        .exclude_kernel = 1, .exclude_hv = 1,
    };

    NEED((fd = (int)syscall(SYS_perf_event_open, &event, 0, -1, -1, 0)) >= 0);
    return OK;
}
static const char *make_fanotify(void)
{
    NEED((fd = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID, 0)) >= 0);
    return OK;
}
static const char *make_pidfd(void) { NEED((fd = (int)syscall(SYS_pidfd_open, getpid(), 0)) >= 0); return OK; }
static const char *make_raw(void) { NEED((fd = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP)) >= 0); return OK; }
static const char *make_packet(void) { NEED((fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL))) >= 0); return OK; }
static const char *make_netlink(void) { NEED((fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE)) >= 0); return OK; }
static const char *make_landlock(void)
{
    uint64_t rights = 1;

    NEED((fd = (int)syscall(444, &rights, sizeof rights, 0)) >= 0);
    return OK;
}

static const char *make_proc_file(void) { NEED((fd = open("/proc/self/status", O_RDONLY)) >= 0); return OK; }
static const char *make_device(void) { NEED((fd = open("/dev/urandom", O_RDONLY)) >= 0); return OK; }
static const char *check_open(void) { NEED(fcntl(fd, F_GETFD) >= 0); return OK; }

#define CASE(name, check) {#name, make_##name, check}
const struct object rare[] = {
    CASE(io_uring, check_open), CASE(userfaultfd, check_open), CASE(perf, check_open), CASE(fanotify, check_open),
    CASE(pidfd, check_open), CASE(raw, check_open), CASE(packet, check_open),
    CASE(netlink, check_open), CASE(landlock, check_open), 
    CASE(proc_file, check_open), CASE(device, check_open), {0},
};
