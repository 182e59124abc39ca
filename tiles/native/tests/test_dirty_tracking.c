/*
 * Tracking of dirty pages that needs nothing of Linux: read-only pages and a handler. Writes of another thread between
 * two steps of the handler are made there, by a function in place of mprotect() (see CMakeLists.txt).
 */
#include "../kernel/dirty_tracking.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

#define FROM 0x3000 /* text and rodata are below */
#define PAGE 5

static struct dirty_tracking tracking;
static uint64_t seen[WRITTEN_WORDS];
static bool scan_between, end_before;
static volatile int faults;

int __real_mprotect(void *at, size_t size, int protection);
int __wrap_mprotect(void *at, size_t size, int protection);

int __wrap_mprotect(void *at, size_t size, int protection)
{
    if (scan_between && protection == (PROT_READ | PROT_WRITE)) {
        scan_between = false;
        dirty_tracking_scan(&tracking, seen);
    }
    return __real_mprotect(at, size, protection);
}

static void on_fault(int number, siginfo_t *what, void *context)
{
    (void)context;
    faults++;
    if (end_before) { /* the move is over just as this thread faults */
        end_before = false;
        dirty_tracking_end(&tracking);
    }
    if (!dirty_tracking_fault(&tracking, (uint64_t)what->si_addr)) {
        signal(number, SIG_DFL);
        raise(number);
    }
}

static uint8_t *user(uint32_t offset)
{
    return (uint8_t *)(uintptr_t)(USER_BASE + offset);
}

static void write_to(volatile uint8_t *at)
{
    *at += 1;
}

/* A write whose mark is taken by a scan in the midst of the handler is found by the next. */
static void test_a_scan_within_the_handler(uint8_t *image)
{
    CHECK(dirty_tracking_begin(&tracking, image, FROM) == TRACKING_MPROTECT);
    scan_between = true;
    write_to(user(PAGE * PAGE_SIZE));
    CHECK(faults == 1 && !scan_between);
    memset(seen, 0, sizeof(seen)); /* the scan was before the write: its copy of the page is old */
    dirty_tracking_scan(&tracking, seen);
    CHECK(seen[0] == 1ull << PAGE);
    write_to(user(PAGE * PAGE_SIZE + 1));
    write_to(image + (PAGE + 1) * PAGE_SIZE);
    memset(seen, 0, sizeof(seen));
    dirty_tracking_scan(&tracking, seen);
    CHECK(seen[0] == 3ull << PAGE && faults == 3);
    dirty_tracking_end(&tracking);
}

/* A fault that is looked at when nothing is watched any more is the program's only where it may not write. */
static void test_an_end_before_the_handler(uint8_t *image)
{
    CHECK(dirty_tracking_begin(&tracking, image, FROM) == TRACKING_MPROTECT);
    end_before = true;
    write_to(user(PAGE * PAGE_SIZE));
    CHECK(!end_before && faults == 4);
    CHECK(!dirty_tracking_fault(&tracking, USER_BASE + FROM - 8));
    CHECK(!dirty_tracking_fault(&tracking, USER_BASE + STACKS_OFFSET + 8)); /* a guard page */
    CHECK(!dirty_tracking_fault(&tracking, 16));
}

int main(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    int fd = memfd_create("region", MFD_CLOEXEC);
    uint8_t *image;

    CHECK(fd >= 0 && ftruncate(fd, USER_SIZE) == 0 && setenv("WHERRY_TILE_FAULT", "tracking:mprotect", 1) == 0);
    image = mmap(NULL, USER_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(image != MAP_FAILED && mmap(user(0), USER_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd,
                                      0) == user(0));
    CHECK(__real_mprotect(user(0), FROM, PROT_READ) == 0);
    for (uint32_t stack = STACKS_OFFSET; stack < USER_SIZE; stack += STACK_SIZE)
        CHECK(__real_mprotect(user(stack), PAGE_SIZE, PROT_NONE) == 0);
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    test_a_scan_within_the_handler(image);
    test_an_end_before_the_handler(image);
    return 0;
}
