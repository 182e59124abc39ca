/*
 * libwherry-criu.so, loaded into CRIU: what keeps a move's freeze short and CRIU offers no option for.
 *
 * WHERRY_CRIU_HIDDEN=FILE, for a dump with --lazy-pages: the mappings in FILE have no pages for CRIU. Their memory goes with
 * wherry-pager, and CRIU would copy it into pipes (0.1 ms/MB) only to drop it. FILE is read when CRIU looks at the first
 * process, which is after the freeze, as it is written at the freeze. Its first line is `hidden COUNT CRC` (CRC-32C of
 * the rest, hexadecimal), then come COUNT lines `PID START END`, sorted or not, PID as the host counts. A file that is
 * missing or damaged ends the dump: a mapping that CRIU copies costs time, one that both leave out would lose memory.
 *
 * Nor does such a dump ask the kernel for the connections that it tracks (conntrack), 5 ms and more: the node's network
 * namespace is external, so they are not restored either.
 *
 * WHERRY_CRIU_GATE=FD, for a restore: CRIU starts, and waits before it reads the first image until a byte can be read
 * from FD. The end of FD ends CRIU.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/netlink.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

/* linux/fs.h, which older systems have without them */
struct scan {
    uint64_t size, flags, start, end, walk_end, vector, vector_length, most_pages, inverted, mask, any_of, returned;
};
static const unsigned long SCAN = 0xc0606610; /* PAGEMAP_SCAN */
static const uint64_t PRESENT = 1 << 3;       /* PAGE_IS_PRESENT */
static const size_t REGION = 24;              /* bytes of a struct page_region */

struct hidden {
    uint64_t start, end;
    int pid;
};

static struct hidden *hidden;
static size_t hidden_count;

static uint32_t crc32c(const uint8_t *bytes, size_t count)
{
    uint32_t crc = ~0U;

    while (count--) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
    }
    return ~crc;
}

static int by_address(const void *one, const void *other)
{
    const struct hidden *a = one, *b = other;

    return a->start < b->start ? -1 : a->start > b->start;
}

/* All of a file, ended by a zero byte; NULL when it cannot be read. */
static char *contents(const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    char *text = NULL;
    ssize_t got;

    if (file < 0)
        return NULL;
    if (!fstat(file, &status) && (text = malloc((size_t)status.st_size + 1))) {
        got = read(file, text, (size_t)status.st_size);
        text[got < 0 ? 0 : got] = 0;
    }
    close(file);
    return text;
}

static bool parse(char *text)
{
    char *line = strchr(text, '\n');
    unsigned int crc;
    size_t count;

    if (!line || sscanf(text, "hidden %zu %x", &count, &crc) != 2)
        return false;
    line++;
    if (crc32c((uint8_t *)line, strlen(line)) != crc || count > strlen(line))
        return false;
    hidden = calloc(count + 1, sizeof(*hidden));
    for (size_t i = 0; hidden && i < count; i++) {
        struct hidden *one = &hidden[i];

        if (!line || sscanf(line, "%d %lx %lx", &one->pid, &one->start, &one->end) != 3 || one->start >= one->end)
            return false;
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    hidden_count = hidden ? count : 0;
    return hidden;
}

static bool learn(const char *path)
{
    char *text = contents(path);
    bool learnt = text && parse(text);

    free(text);
    if (learnt)
        qsort(hidden, hidden_count, sizeof(*hidden), by_address);
    else
        fprintf(stderr, "wherry: %s is not a whole list of hidden mappings\n", path);
    return learnt;
}

/* Whose /proc/PID/pagemap that is; 0: nobody's. */
static int process_of(int pagemap)
{
    char link[64], path[PATH_MAX], *end;
    ssize_t length;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", pagemap);
    length = readlink(link, path, sizeof(path) - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    end = strrchr(path, '/');
    if (!end || end == path || strcmp(end, "/pagemap"))
        return 0;
    *end = 0;
    end = strrchr(path, '/');
    return end ? atoi(end + 1) : 0;
}

/* The first hidden mapping of the process that ends after an address; NULL: none. */
static const struct hidden *next_hidden(int pid, uint64_t address)
{
    for (size_t i = 0; i < hidden_count; i++)
        if (hidden[i].pid == pid && hidden[i].end > address)
            return &hidden[i];
    return NULL;
}

/* Scans what lies between hidden mappings. Results as those of PAGEMAP_SCAN. */
static int scan_others(int pagemap, struct scan *scan)
{
    int pid = process_of(pagemap), found;
    uint64_t at = scan->start, count = 0;

    while (at < scan->end && count < scan->vector_length) {
        const struct hidden *next = next_hidden(pid, at);
        uint64_t end = next && next->start < scan->end ? next->start : scan->end;
        struct scan part = *scan;

        if (end <= at) {
            at = next->end < scan->end ? next->end : scan->end;
            continue;
        }
        part.start = at;
        part.end = end;
        part.vector += count * REGION;
        part.vector_length -= count;
        found = (int)syscall(SYS_ioctl, pagemap, SCAN, &part);
        if (found < 0)
            return found;
        count += (uint64_t)found;
        at = part.walk_end;
    }
    scan->walk_end = at;
    return (int)count;
}

EXPORTED int ioctl(int fd, unsigned long request, ...)
{
    const char *path = getenv("WHERRY_CRIU_HIDDEN");
    static bool learnt;
    va_list list;
    void *argument;

    va_start(list, request);
    argument = va_arg(list, void *);
    va_end(list);
    if (request != SCAN || !path || !(((struct scan *)argument)->any_of & PRESENT))
        return (int)syscall(SYS_ioctl, fd, request, argument);
    if (!learnt && !learn(path)) {
        errno = EPROTO;
        return -1;
    }
    learnt = true;
    return scan_others(fd, argument);
}

/* Takes any request, and answers with the end. What is at its other end stays open until CRIU ends. */
static int mute_socket(void)
{
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
        return -1;
    shutdown(ends[1], SHUT_WR);
    return ends[0];
}

EXPORTED int socket(int domain, int type, int protocol)
{
    if (domain == AF_NETLINK && protocol == NETLINK_NETFILTER && getenv("WHERRY_CRIU_HIDDEN"))
        return mute_socket();
    return (int)syscall(SYS_socket, domain, type, protocol);
}

static void await_gate(const char *descriptor)
{
    char byte;
    ssize_t got;

    do
        got = read(atoi(descriptor), &byte, 1);
    while (got < 0 && errno == EINTR);
    if (got != 1)
        _exit(1);
    unsetenv("WHERRY_CRIU_GATE");
}

EXPORTED int openat(int directory, const char *path, int flags, ...)
{
    const char *gate = getenv("WHERRY_CRIU_GATE");
    mode_t mode = 0;
    va_list list;

    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {
        va_start(list, flags);
        mode = va_arg(list, mode_t);
        va_end(list);
    }
    if (gate && !strcmp(path, "inventory.img"))
        await_gate(gate);
    return (int)syscall(SYS_openat, directory, path, flags, mode);
}

EXPORTED int openat64(int directory, const char *path, int flags, ...) __attribute__((alias("openat")));
