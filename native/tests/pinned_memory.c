/*
 * Memory that the kernel writes without a fault, for the tests of the pager.
 *
 *   pinned_memory direct FILE   reads the file into 4 MiB with O_DIRECT, again and again, each time with other contents
 *   pinned_memory writev        is in process_vm_writev(2), its target pinned and its source not there, until SIGUSR1
 *
 * Either prints "ready" when that has begun, and continues for ever.
 */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 1024, VERSIONS = 16 };

static char *new_pages(int count)
{
    char *pages = mmap(NULL, (size_t)count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (pages == MAP_FAILED)
        exit(1);
    return pages;
}

static void say_ready(void)
{
    puts("ready");
    fflush(stdout);
}

static int fail(const char *what)
{
    perror(what);
    return 1;
}

static int read_directly(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    char *pages = new_pages(PAGES);

    for (int version = 0; version < VERSIONS; version++) {
        memset(pages, 1 + version, PAGES * PAGE);
        if (write(file, pages, PAGES * PAGE) != PAGES * PAGE)
            return fail("write");
    }
    if (fsync(file) || close(file) || (file = open(path, O_RDONLY | O_DIRECT)) < 0)
        return fail(path);
    say_ready();
    for (unsigned k = 0;; k++) {
        unsigned page = k % PAGES, version = k / PAGES % VERSIONS;

        if (pread(file, pages + (size_t)page * PAGE, PAGE, ((off_t)version * PAGES + page) * PAGE) != PAGE)
            return fail("pread");
    }
}

static char *target, *source;

static void *write_target(void *unused)
{
    struct iovec from = {source, PAGE}, to = {target, PAGE};

    (void)unused;
    if (process_vm_writev(getpid(), &from, 1, &to, 1, 0) != PAGE)
        exit(fail("process_vm_writev"));
    return NULL;
}

static int write_when_told(void)
{
    int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC), number;
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register area = {.mode = UFFDIO_REGISTER_MODE_MISSING};
    struct uffdio_copy copy = {.len = PAGE};
    struct pollfd look = {faults, POLLIN, 0};
    struct uffd_msg message;
    pthread_t thread;
    sigset_t usr1;

    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    target = new_pages(2); /* apart from other memory */
    source = new_pages(1);
    memset(target, 1, 2 * PAGE);
    area.range.start = copy.dst = (uintptr_t)source;
    area.range.len = PAGE;
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &area))
        return fail("userfaultfd");
    if (pthread_create(&thread, NULL, write_target, NULL) || poll(&look, 1, -1) != 1 ||
        read(faults, &message, sizeof(message)) != sizeof(message))
        return fail("fault");
    say_ready();
    sigwait(&usr1, &number);
    copy.src = (uintptr_t)memset(new_pages(1), 7, PAGE);
    if (ioctl(faults, UFFDIO_COPY, &copy))
        return fail("UFFDIO_COPY");
    pthread_join(thread, NULL);
    say_ready();
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "direct"))
        return read_directly(argv[2]);
    return argc == 2 && !strcmp(argv[1], "writev") ? write_when_told() : 2;
}
