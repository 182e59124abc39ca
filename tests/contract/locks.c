/* Takes, tries and waits for file locks, for the tests of moves. A lock is KIND:TYPE:START:LENGTH:PATH: KIND is flock,
 * posix, ofd or lease, TYPE is read or write; START and LENGTH are of fcntl locks only (length 0: to the end).
 *
 *   hold READY GO LOCK...   takes them, writes READY, then counts in it until GO is there; releases them and ends
 *   map READY GO LOCK...    the same, with each file mapped as well
 *   mapped READY GO LOCK... the same, and each descriptor closed: the mapping alone keeps a flock
 *   fork READY GO LOCK...   the same as hold, but a child, which inherits the descriptions, counts; the parent ends
 *   pulse READY GO LOCK     takes and releases it without end: 2 ms with it, 6 ms without
 *   remap READY GO LOCK     as hold; afterwards, each time that READY.on is there, removes it and maps the file anew
 *   upgrade READY GO LOCK.. holds them until it was moved; then reopens each file and requests a write lock; READY gets "upgraded" or
 *                           "busy"
 *   nameless READY GO LOCK  as hold, with descriptors of memory, of a process and of a namespace
 *   wait READY GO LOCK      writes READY, waits for the lock, then continues as hold
 *   try LOCK                exits with 0 if it can be acquired at once, with 1 if another process holds it
 *   watch READY GO LOCK     tries every 100 us until GO is there; READY then has "ATTEMPTS ACQUIRED"
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct lock {
    int fd;
    char kind[8], type[8];
    long start, length;
};

static void fail(const char *what)
{
    perror(what);
    exit(2);
}

static struct lock parse(const char *text)
{
    struct lock lock;
    int at = 0;
    if (sscanf(text, "%7[^:]:%7[^:]:%ld:%ld:%n", lock.kind, lock.type, &lock.start, &lock.length, &at) < 4 || !at)
        fail(text);
    struct stat found;
    int directory = !stat(text + at, &found) && S_ISDIR(found.st_mode);
    int lease = !strcmp(lock.kind, "lease") && !strcmp(lock.type, "read");
    lock.fd = open(text + at, directory || lease ? O_RDONLY : O_RDWR | O_CREAT, 0666);
    if (lock.fd < 0)
        fail(text + at);
    return lock;
}

/* 0, or -1 when another holds it. */
static int take(const struct lock *lock, int wait, int release)
{
    int write = !strcmp(lock->type, "write"), got;
    short type = release ? F_UNLCK : write ? F_WRLCK : F_RDLCK;
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = lock->start, .l_len = lock->length};
    if (!strcmp(lock->kind, "flock"))
        got = flock(lock->fd, (release ? LOCK_UN : write ? LOCK_EX : LOCK_SH) | (wait ? 0 : LOCK_NB));
    else if (!strcmp(lock->kind, "lease"))
        got = fcntl(lock->fd, F_SETLEASE, (int)type);
    else if (!strcmp(lock->kind, "ofd"))
        got = fcntl(lock->fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &range);
    else
        got = fcntl(lock->fd, wait ? F_SETLKW : F_SETLK, &range);
    if (got && errno != EAGAIN && errno != EACCES)
        fail("lock");
    return got;
}

static void tell(const char *ready, const char *text)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.new", ready);
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, text, strlen(text)) < 0 || close(fd) || rename(name, ready))
        fail(ready);
}

static void count(const char *ready, const char *go)
{
    char text[32];
    for (long n = 0; access(go, F_OK); n++) {
        snprintf(text, sizeof text, "%ld %d\n", n, getpid());
        tell(ready, text);
        usleep(10000);
    }
}

static void watch(const char *ready, const char *go, const struct lock *lock)
{
    long tries = 0, got = 0;
    char text[64];
    tell(ready, "");
    for (; access(go, F_OK); tries++) {
        if (!take(lock, 0, 0)) {
            got++;
            take(lock, 0, 1);
        }
        usleep(100);
    }
    snprintf(text, sizeof text, "%ld %ld\n", tries, got);
    tell(ready, text);
}

static void pulse(const char *ready, const char *go, const struct lock *lock)
{
    char text[32];
    for (long n = 0; access(go, F_OK); n++) {
        take(lock, 1, 0);
        snprintf(text, sizeof text, "%ld\n", n);
        tell(ready, text);
        usleep(2000);
        take(lock, 0, 1);
        usleep(6000);
    }
}

static void remap(const char *ready, const struct lock *lock)
{
    char on[4096];
    snprintf(on, sizeof on, "%s.on", ready);
    for (;; usleep(1000)) {
        if (access(on, F_OK))
            continue;
        if (ftruncate(lock->fd, 4096) || mmap(NULL, 4096, PROT_READ, MAP_SHARED, lock->fd, 0) == MAP_FAILED)
            fail("mmap");
        unlink(on);
        tell(ready, "mapped\n");
    }
}

/* Device number of the node's private /tmp, which changes when the node is moved. */
static dev_t here(void)
{
    struct stat found;
    if (stat("/tmp", &found))
        fail("/tmp");
    return found.st_dev;
}

static void upgrade(const char *ready, struct lock *locks, char **names, int count)
{
    size_t size = 64 << 20;
    int busy = 0;
    char *memory = malloc(size);
    if (!memory)
        fail("malloc");
    memset(memory, 1, size);
    tell(ready, "holds\n");
    for (dev_t before = here(); here() == before;)
        usleep(200);
    for (int n = 0; n < count; n++) {
        close(locks[n].fd);
        locks[n] = parse(names[n]);
        strcpy(locks[n].type, "write");
        busy |= take(&locks[n], 0, 0);
    }
    tell(ready, busy ? "busy\n" : "upgraded\n");
}

int main(int argc, char **argv)
{
    struct lock locks[16];
    const char *act = argv[1], *ready = argv[2], *go = argv[3];
    if (argc == 3 && !strcmp(act, "try")) {
        locks[0] = parse(argv[2]);
        return take(&locks[0], 0, 0) ? 1 : 0;
    }
    if (argc < 5 || argc > 20)
        return 2;
    for (int n = 4; n < argc; n++)
        locks[n - 4] = parse(argv[n]);
    if (!strcmp(act, "watch")) {
        watch(ready, go, locks);
        return 0;
    }
    if (!strcmp(act, "pulse")) {
        pulse(ready, go, locks);
        return 0;
    }
    if (!strcmp(act, "wait"))
        tell(ready, "waits\n");
    for (int n = 0; n < argc - 4; n++) {
        if (take(&locks[n], !strcmp(act, "wait"), 0))
            fail(argv[n + 4]);
        if (!strncmp(act, "map", 3) && (ftruncate(locks[n].fd, 4096) ||
            mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, locks[n].fd, 0) == MAP_FAILED))
            fail("mmap");
        if (!strcmp(act, "mapped"))
            close(locks[n].fd);
    }
    if (!strcmp(act, "nameless") && (memfd_create("locks", 0) < 0 || syscall(SYS_pidfd_open, getpid(), 0) < 0 ||
        open("/proc/self/ns/uts", O_RDONLY) < 0))
        fail("nameless");
    if (!strcmp(act, "fork") && fork() > 0)
        return 0;
    if (!strcmp(act, "upgrade")) {
        upgrade(ready, locks, argv + 4, argc - 4);
        return 0;
    }
    count(ready, go);
    for (int n = 0; n < argc - 4 && strcmp(act, "mapped"); n++)
        take(&locks[n], 0, 1);
    tell(ready, "released\n");
    if (!strcmp(act, "remap"))
        remap(ready, locks);
    return 0;
}
