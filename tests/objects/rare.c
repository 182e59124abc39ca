/* Rare kinds of descriptors: some that cannot be moved (check() is never reached), and some that can. */
#include "objects.h"

#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/netlink.h>
#include <linux/perf_event.h>
#include <linux/rtnetlink.h>
#include <linux/seccomp.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <sys/fanotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

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

static const char *make_vsock(void) { NEED((fd = socket(AF_VSOCK, SOCK_STREAM, 0)) >= 0); return OK; }
static const char *make_alg(void) { NEED((fd = socket(AF_ALG, SOCK_SEQPACKET, 0)) >= 0); return OK; }
static const char *make_ping(void) { NEED((fd = socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP)) >= 0); return OK; }
static const char *make_mptcp(void) { NEED((fd = socket(AF_INET, SOCK_STREAM, 262)) >= 0); return OK; }
static const char *make_secret(void) { NEED((fd = (int)syscall(447, 0)) >= 0); return OK; }
static const char *make_secret_mapped(void)
{
    NEED((fd = (int)syscall(447, 0)) >= 0);
    NEED(!ftruncate(fd, 4096));
    NEED(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED);
    NEED(!close(fd));
    return OK;
}
static const char *make_netlink_unread(void)
{
    struct {
        struct nlmsghdr header;
        struct rtgenmsg family;
    } request = {
        .header = {sizeof request, RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 1, 0}, .family = {AF_UNSPEC},
    };

    NEED((fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE)) >= 0);
    NEED(send(fd, &request, sizeof request, 0) == sizeof request);
    return OK;
}
static const char *make_netlink_group(void)
{
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};

    NEED((fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE)) >= 0);
    NEED(!bind(fd, (struct sockaddr *)&address, sizeof address));
    return OK;
}
static const char *check_netlink_group(void)
{
    struct sockaddr_nl address;
    socklen_t size = sizeof address;

    NEED(!getsockname(fd, (struct sockaddr *)&address, &size));
    return address.nl_groups == RTMGRP_LINK ? OK : wrong("groups %#x", address.nl_groups);
}
/* Somebody outside the node listens there. */
static const char *make_unix_outside(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/tmp/outside"};

    NEED((fd = socket(AF_UNIX, SOCK_STREAM, 0)) >= 0);
    NEED(!connect(fd, (struct sockaddr *)&address, sizeof address));
    return OK;
}
static const char *make_seccomp_listener(void)
{
    struct sock_filter all = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    struct sock_fprog program = {1, &all};

    fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    NEED(fd >= 0);
    return OK;
}
static unsigned long context;
static const char *make_aio(void) { NEED(!syscall(SYS_io_setup, 8, &context)); return OK; }
static const char *check_aio(void)
{
    NEED(!syscall(SYS_io_getevents, context, 0L, 0L, NULL, NULL));
    return OK;
}
static const char *make_namespace(void) { NEED((fd = open("/proc/self/ns/uts", O_RDONLY)) >= 0); return OK; }

static const char *make_proc_file(void) { NEED((fd = open("/proc/self/status", O_RDONLY)) >= 0); return OK; }
static const char *make_device(void) { NEED((fd = open("/dev/urandom", O_RDONLY)) >= 0); return OK; }
static const char *check_open(void) { NEED(fcntl(fd, F_GETFD) >= 0); return OK; }

#define CASE(name, check) {#name, make_##name, check}
const struct object rare[] = {
    CASE(io_uring, check_open), CASE(userfaultfd, check_open), CASE(perf, check_open), CASE(fanotify, check_open),
    CASE(pidfd, check_open), CASE(raw, check_open), CASE(packet, check_open),
    CASE(netlink, check_open), CASE(landlock, check_open),
    CASE(proc_file, check_open), CASE(device, check_open), CASE(vsock, check_open), CASE(alg, check_open),
    CASE(ping, check_open), CASE(mptcp, check_open), CASE(secret, check_open), CASE(secret_mapped, check_open),
    CASE(netlink_unread, check_open), CASE(netlink_group, check_netlink_group), CASE(unix_outside, check_open),
    CASE(seccomp_listener, check_open), CASE(aio, check_aio),
    CASE(namespace, check_open), {0},
};
