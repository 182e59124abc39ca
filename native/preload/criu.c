/*
 * libwherry-criu.so, loaded into CRIU: functions that keep a move's freeze short and for which CRIU has no option.
 *
 * WHERRY_CRIU_SKIP=FILE, for a dump with --lazy-pages: the mappings in FILE have no pages for CRIU. Their memory goes with
 * wherry-pager, and CRIU would copy it into pipes (0.1 ms/MB) only to drop it. FILE is read when CRIU looks at the first
 * process, which is after the freeze, as it is written at the freeze. Its first line is `hidden COUNT CRC` (CRC-32C of
 * the rest, hexadecimal), then come COUNT lines `PID START END`, sorted or not, PID as the host counts. A file that is
 * missing or damaged ends the dump: a mapping that CRIU copies costs time, a mapping that both leave out would lose
 * memory. Lines `shared DEVICE INODE` and `sysv DEVICE INODE` (hexadecimal) name shared memory, which has holes only
 * for CRIU.
 *
 * Nor does such a dump ask the kernel for the connections that it tracks (conntrack), 5 ms and more: the node's network
 * namespace is external, so they are not restored either.
 *
 * WHERRY_CRIU_SMAPS=PREFIX, for a dump: PREFIX.PID is a copy of /proc/PID/smaps from before the freeze, which CRIU gets in place
 * of that file, as making it takes the kernel 9 ms for each GiB, if the process has the same mappings still (/proc/PID/maps).
 * PREFIX.PID.used is its name then: flags that changed meanwhile (mlock, madvise) are for the caller to find.
 *
 * A dump asks for the file of each mapping. That one has none is answered from its smaps: the kernel would take 4 us.
 *
 * A program that unmaps its vDSO, as valgrind does, and keeps the data of it ([vvar]) loses these, too: CRIU would find no vDSO
 * for them, and nothing else reads them.
 *
 * WHERRY_CRIU_ACT=dump: CRIU learns of a thread that waits in poll, nanosleep, epoll_wait and others that it is to make that
 * call again. It would have the restored one end with EINTR, though no signal came.
 *
 * WHERRY_CRIU_ACT=restore: a TCP connection that has data which was never sent is made active for a moment, so that they are put
 * into it. With that the kernel would send a probe, and a peer in the same node that is not restored yet would answer with a reset.
 *
 * WHERRY_CRIU_ROOT=PATH, for a dump: the root directory of the node. A file that was opened by a name that was removed, and
 * has another one in the same directory (sem_open makes all semaphores so), has that one for CRIU, which would refuse it.
 *
 * CRIU would take the unread bytes of a terminal out and write them into it again with the program's settings, so that
 * the kernel echoes them and ends lines once more; in a restore to the wrong end, where a slave was opened twice; of 16
 * KiB at most; and nothing where nobody has the slave open any more. Here all of them are carried, in `terminals` among
 * the images (criu_terminals.c).
 *
 * A restore takes the locks that `mapped-locks` among the images lists, when it opens the files: a mapping keeps the
 * description, and with it the lock, whose descriptor the program has closed.
 *
 * WHERRY_CRIU_OPTIONS=FILE, for a dump: FILE gets a line `INODE LEVEL OPTION VALUE` (hexadecimal bytes) for each option of a socket
 * that a program has changed and CRIU does not carry. The caller sets them again.
 *
 * A restore maps address space that a program has only reserved (allocators, managed runtimes) writable for a moment. A
 * mapping that the kernel refuses for that is asked for without its being counted (MAP_NORESERVE).
 *
 * WHERRY_CRIU_GATE=FD, for a restore: CRIU starts, and waits before it reads the first image until a byte can be read
 * from FD. The end of FD ends CRIU.
 */
#include "criu_locks.h"
#include "criu_smaps.h"
#include "criu_terminals.h"
#include "lookup.h"
#include "proc.h"

#include <asm/ioctls.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <linux/netlink.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <unistd.h>

#include <wherry/interrupted_call.h>

/* linux/fs.h, which older systems have without them */
struct scan {
    uint64_t size, flags, start, end, walk_end, vector, vector_length, most_pages, inverted, mask, any_of, returned;
};
static const unsigned long SCAN = 0xc0606610; /* PAGEMAP_SCAN */
static const uint64_t PRESENT = 1 << 3;       /* PAGE_IS_PRESENT */
static const size_t REGION = 24;              /* bytes of a struct page_region */

struct skipped_mapping {
    uint64_t start, end;
    int pid;
};

struct skipped_object {
    uint64_t device, inode;
    bool is_sysv; /* whose inodes have numbers of their own */
};

static struct skipped_mapping *skipped;
static struct skipped_object *objects;
static size_t skipped_count, objects_count;

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
    const struct skipped_mapping *a = one, *b = other;

    if (a->pid != b->pid)
        return a->pid < b->pid ? -1 : 1;
    return a->start < b->start ? -1 : a->start > b->start;
}

/* Reads two numbers at the end of a line. Not by sscanf, which looks for the end of all the text first. */
static bool parse_two(const char *text, uint64_t *one, uint64_t *other)
{
    char *at, *end;

    *one = strtoul(text, &at, 16);
    *other = strtoul(at, &end, 16);
    return at > text && end > at && *end == '\n';
}

static bool parse_line(const char *line)
{
    struct skipped_mapping *one = &skipped[skipped_count];
    struct skipped_object *object = &objects[objects_count];
    bool is_shared = !strncmp(line, "shared ", 7);
    char *at;

    object->is_sysv = !strncmp(line, "sysv ", 5);
    if (is_shared || object->is_sysv) {
        objects_count++;
        return parse_two(strchr(line, ' '), &object->device, &object->inode);
    }
    one->pid = (int)strtol(line, &at, 10);
    skipped_count++;
    return at > line && parse_two(at, &one->start, &one->end) && one->start < one->end;
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
    skipped = calloc(count + 1, sizeof(*skipped));
    objects = calloc(count + 1, sizeof(*objects));
    skipped_count = objects_count = 0;
    for (size_t i = 0; skipped && objects && i < count; i++) {
        if (!line || !parse_line(line))
            return false;
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return skipped && objects;
}

static bool load_skip_list(const char *path)
{
    char *text = contents(AT_FDCWD, path);
    bool loaded = text && parse(text);

    free(text);
    if (loaded)
        qsort(skipped, skipped_count, sizeof(*skipped), by_address);
    else
        fprintf(stderr, "wherry: %s is not a whole list of skipped mappings\n", path);
    return loaded;
}

/* The first skipped mapping of the process that ends after an address; NULL: none. */
static const struct skipped_mapping *next_skipped(int pid, uint64_t address)
{
    size_t low = 0, high = skipped_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (skipped[middle].pid < pid || (skipped[middle].pid == pid && skipped[middle].end <= address))
            low = middle + 1;
        else
            high = middle;
    }
    return low < skipped_count && skipped[low].pid == pid ? &skipped[low] : NULL;
}

/* Scans the memory between skipped mappings. Results as those of PAGEMAP_SCAN. */
static int scan_others(int pagemap, struct scan *scan)
{
    int pid = process_of(pagemap, "/pagemap"), found;
    uint64_t at = scan->start, count = 0;

    while (at < scan->end && count < scan->vector_length) {
        const struct skipped_mapping *next = next_skipped(pid, at);
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

/* Reads the list when it is first needed. False with errno when there is no whole list. */
static bool have_list(const char *path)
{
    static bool loaded;

    loaded = loaded || load_skip_list(path);
    if (!loaded)
        errno = EPROTO;
    return loaded;
}

EXPORTED int ioctl(int fd, unsigned long request, ...)
{
    const char *path = getenv("WHERRY_CRIU_SKIP");
    va_list list;
    void *argument;
    int result;

    va_start(list, request);
    argument = va_arg(list, void *);
    va_end(list);
    if (request == TIOCGWINSZ && does("dump"))
        meet_terminal(fd);
    if (request != SCAN || !path || !(((struct scan *)argument)->any_of & PRESENT)) {
        result = (int)syscall(SYS_ioctl, fd, request, argument);
        return request == TIOCSWINSZ && !result && does("restore") && !fill_terminal(fd) ? -1 : result;
    }
    return have_list(path) ? scan_others(fd, argument) : -1;
}

/* CRIU would take out the bytes of terminals that it carries, and put them back with the program's settings. */
EXPORTED ssize_t read(int fd, void *bytes, size_t count)
{
    unsigned index;
    bool is_master;

    if (does("dump") && identify_terminal(fd, &index, &is_master))
        return errno = EAGAIN, -1;
    return syscall(SYS_read, fd, bytes, count);
}

static bool is_skipped_object(int fd)
{
    char link[64], path[16] = "";
    struct stat status;
    bool is_sysv;

    if (fstat(fd, &status))
        return false;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    is_sysv = readlink(link, path, sizeof(path) - 1) > 0 && !strncmp(path, "/SYSV", 5);
    for (size_t i = 0; i < objects_count; i++)
        if (objects[i].device == status.st_dev && objects[i].inode == status.st_ino && objects[i].is_sysv == is_sysv)
            return true;
    return false;
}

/* CRIU asks in this way for the parts of shared memory to dump. */
EXPORTED off_t lseek(int fd, off_t offset, int whence)
{
    const char *path = whence == SEEK_DATA ? getenv("WHERRY_CRIU_SKIP") : NULL;

    if (path && !have_list(path))
        return -1;
    if (path && is_skipped_object(fd)) {
        errno = ENXIO; /* there are no data behind the offset */
        return -1;
    }
    return syscall(SYS_lseek, fd, offset, whence);
}

EXPORTED off_t lseek64(int fd, off_t offset, int whence) __attribute__((alias("lseek")));


/* The registers that CRIU gets of a stopped thread. It restarts calls that end with ERESTARTNOINTR. */
static void have_call_made_again(int tid, struct user_regs_struct *registers)
{
    long number;

    undo_restart(tid, registers);
    if ((number = interrupted_call(tid, registers)) < 0)
        return;
    registers->orig_rax = (unsigned long long)number;
    registers->rax = (unsigned long long)-WHERRY_ERESTARTNOINTR;
}

EXPORTED long ptrace(enum __ptrace_request request, ...)
{
    static long (*next)(enum __ptrace_request, ...);
    struct user_regs_struct *registers = NULL;
    void *address, *data;
    va_list list;
    long result;
    int tid;

    va_start(list, request);
    tid = va_arg(list, int);
    address = va_arg(list, void *);
    data = va_arg(list, void *);
    va_end(list);
    if (!next)
        next = (long (*)(enum __ptrace_request, ...))function_behind("ptrace", (void *)ptrace, (void *)ptrace);
    result = next(request, tid, address, data);
    if (request == PTRACE_GETREGS)
        registers = data;
    else if (request == PTRACE_GETREGSET && (uintptr_t)address == NT_PRSTATUS)
        registers = ((struct iovec *)data)->iov_base;
    if (registers && !result && does("dump"))
        have_call_made_again(tid, registers);
    return result;
}

EXPORTED int setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
    static const int off_without_probe = -1;
    struct sockaddr_storage peer;
    socklen_t size = sizeof(peer);

    if (level == IPPROTO_TCP && option == TCP_REPAIR && !*(const int *)value && does("restore") &&
        !getpeername(fd, (struct sockaddr *)&peer, &size))
        value = &off_without_probe;
    return (int)syscall(SYS_setsockopt, fd, level, option, value, length);
}

/* Takes any request, and answers with the end. Its other end stays open until CRIU ends. */
static int fake_netlink_socket(void)
{
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
        return -1;
    shutdown(ends[1], SHUT_WR);
    return ends[0];
}

EXPORTED int socket(int domain, int type, int protocol)
{
    if (domain == AF_NETLINK && protocol == NETLINK_NETFILTER && getenv("WHERRY_CRIU_SKIP"))
        return fake_netlink_socket();
    return (int)syscall(SYS_socket, domain, type, protocol);
}

EXPORTED void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t place)
{
    void *memory = (void *)syscall(SYS_mmap, address, size, protection, flags, fd, place);

    if (memory == MAP_FAILED && errno == ENOMEM && (flags & MAP_ANONYMOUS) && (flags & MAP_PRIVATE) && does("restore"))
        memory = (void *)syscall(SYS_mmap, address, size, protection, flags | MAP_NORESERVE, -1, 0L);
    return memory;
}

EXPORTED void *mmap64(void *address, size_t size, int protection, int flags, int fd, off_t place)
    __attribute__((alias("mmap")));

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
    const char *gate = getenv("WHERRY_CRIU_GATE"), *copies = getenv("WHERRY_CRIU_SMAPS");
    mode_t mode = 0;
    va_list list;
    int copy, file;

    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {
        va_start(list, flags);
        mode = va_arg(list, mode_t);
        va_end(list);
    }
    if (gate && !strcmp(path, "inventory.img"))
        await_gate(gate);
    if (does("restore")) {
        if (!strcmp(path, "inventory.img"))
            learn_mapped_locks(directory), learn_terminals(directory);
        if ((file = (int)syscall(SYS_openat, directory, path, flags, mode)) >= 0)
            take_mapped_locks(path, file);
        return file;
    }
    if (flags & O_CREAT && !strcmp(path, "inventory.img") && does("dump") && !note_terminals(directory))
        return -1; /* it is the last image, and ends the dump */
    if (!strcmp(path, "smaps") && (copies || does("dump")) && (copy = given_smaps(directory, copies)) >= 0)
        return copy;
    return (int)syscall(SYS_openat, directory, path, flags, mode);
}

EXPORTED int openat64(int directory, const char *path, int flags, ...) __attribute__((alias("openat")));
