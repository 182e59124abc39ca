/*
 * A process whose memory `wherry-pager receive` fills in, and that changes its mappings all the time meanwhile.
 *
 *   lazy_storm RECEIVER DIRECTORY [MIB [MS [FILL_RATE [SEED [LATE [cut | stall]]]]]]
 *   lazy_storm target DIRECTORY [MIB]           the same storm for CRIU to dump and to restore
 *
 *   this process --2 x TCP--> RECEIVER receive      the pages, made up from their identity
 *                --lazy-pages.socket-->             its own userfaultfd, as CRIU would hand it over
 *
 *   threads   2 read and write pages, 2 move, grow, shrink, drop and exchange regions every ms, 1 forks every 8 ms
 *
 * A region has a lock, and the contents that each of its pages has to have; a child checks the regions that its parent
 * had locked. At the end all pages are checked. MS 0: nothing but random reads, of which the times are printed. Exits
 * with 0 when all was right, with 1 when a page was not, and by SIGALRM when somebody waited for ever. With LATE, pages
 * for each millisecond, half of the pages come after the last pass (late_pages.h), or only half of these.
 */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "late_pages.h"
#include "lazy_harness.h"
#include "read_times.h"

enum {
    PAGE = STREAM_PAGE,
    WORDS = PAGE / 8,
    REGIONS = 32,
    GROWN_MAX = 64,
    CHILDREN_MAX = 8,
    ZERO = -1, /* instead of a version */
    LATE = 9,
    HANGS_AFTER_S = 60,
};

struct region {
    pthread_mutex_t lock;
    uint8_t *at;
    uint32_t home;   /* its two slots of the arena are this region's */
    uint32_t pages;
    int32_t *versions;
};

static struct region regions[REGIONS];
static uint32_t region_pages;
static uint8_t *const arena = (void *)UINT64_C(0x500000000000); /* for MREMAP_FIXED; the kernel chooses none so low */
static size_t slot;
static _Atomic int stop;
static _Atomic uint64_t checks, remaps, forks, drops;
static uint64_t seed = 1;

static uint64_t random_number(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static uint64_t word_of(uint32_t region, uint32_t page, int32_t version, unsigned index)
{
    uint64_t identity = (uint64_t)region << 48 | (uint64_t)page << 16 | index;

    return version == ZERO ? 0 : identity * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)version + 1;
}

static void write_page(void *bytes, uint32_t region, uint32_t page, int32_t version)
{
    uint64_t *words = bytes;

    for (unsigned i = 0; i < WORDS; i++)
        words[i] = word_of(region, page, version, i);
}

static void check_page(uint32_t number, uint32_t page)
{
    static const unsigned probes[] = {0, 1, 255, 511};
    const struct region *region = &regions[number];
    const volatile uint64_t *words = (const void *)(region->at + (size_t)page * PAGE);

    for (size_t i = 0; i < sizeof(probes) / sizeof(*probes); i++)
        if (words[probes[i]] != word_of(number, page, region->versions[page], probes[i])) {
            dprintf(2, "BAD pid %d region %u page %u version %d word %u at %p: %" PRIx64 "\n", getpid(), number, page,
                    region->versions[page], probes[i], (void *)words, words[probes[i]]);
            _exit(1);
        }
    checks++;
}

static void touch(uint32_t number, uint32_t page)
{
    struct region *region = &regions[number];

    check_page(number, page);
    region->versions[page] = region->versions[page] == ZERO ? 7 : region->versions[page] + 1;
    write_page(region->at + (size_t)page * PAGE, number, page, region->versions[page]);
}

static void set_versions(uint32_t number, uint32_t first, uint32_t count, int32_t version)
{
    for (uint32_t page = first; page < first + count; page++)
        regions[number].versions[page] = version;
}

/* Some pages twice, all others once; some are zero. */
static void send_pages(struct stream *stream, uint32_t number, uint32_t first, uint32_t count, int32_t version)
{
    static uint8_t bytes[STREAM_PAGES_MAX * PAGE];

    for (uint32_t i = 0; i < count; i++)
        write_page(bytes + i * PAGE, number, first + i, version);
    send_data(stream, regions[number].at + (size_t)first * PAGE, count, bytes);
    set_versions(number, first, count, version);
}

static void write_late(void *bytes, uint64_t address)
{
    uint64_t offset = address - (uintptr_t)arena;

    write_page(bytes, (uint32_t)(offset / (2 * slot)), (uint32_t)(offset % (2 * slot) / PAGE), LATE);
}

static void add_late(uint32_t number, uint32_t first, uint32_t count)
{
    late_add(regions[number].at + (size_t)first * PAGE, count);
    set_versions(number, first, count, LATE);
}

static void send_everything(struct receiver *receiver, unsigned late, enum late_end end)
{
    struct stream *streams = receiver->streams;

    for (uint32_t number = 0; number < REGIONS; number++)
        for (uint32_t first = 0; first < region_pages; first += STREAM_PAGES_MAX)
            send_pages(&streams[number % 2], number, first, STREAM_PAGES_MAX, 0);
    send_end(receiver, 'R', 1);
    for (uint32_t number = 0; number < REGIONS; number += 3) {
        send_pages(&streams[0], number, 10, 33, 1);
        send_hole(&streams[1], regions[number].at + 100 * PAGE, 100);
        set_versions(number, 100, 100, ZERO);
    }
    for (uint32_t number = 1; late && number < REGIONS; number++)
        for (uint32_t page = 0; number % 3 && page < region_pages; page += number % 3)
            add_late(number, page, 1);
    if (late)
        late_begin(receiver, 2, write_late, late, end);
    else
        send_end(receiver, 'L', 2);
}

/* CRIU's part for a process that it restores. */
static void become_lazy(void)
{
    int userfault = userfault_new(), connection = userfault_hand_over(userfault);

    for (int i = 0; i < REGIONS; i++)
        userfault_register(userfault, regions[i].at, (size_t)region_pages * PAGE);
    close(userfault);
    restore_finished(connection);
}

/* The storm. */

static void move_to(struct region *region, uint32_t pages, int flags, void *where)
{
    void *at = mremap(region->at, (size_t)region->pages * PAGE, (size_t)pages * PAGE, flags, where);

    CHECK(at != MAP_FAILED);
    for (uint32_t page = region->pages; page < pages; page++)
        region->versions[page] = ZERO;
    region->at = at;
    region->pages = pages;
    remaps++;
}

static void move_and_leave(struct region *region)
{
    size_t size = (size_t)region->pages * PAGE;
    uint8_t *old = region->at;

    move_to(region, region->pages, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    CHECK(!old[size / 2 / PAGE * PAGE]); /* zero now */
    CHECK(!munmap(old, size));
}

static uint8_t *free_slot(const struct region *region)
{
    uint8_t *first = arena + (size_t)region->home * 2 * slot;

    return region->at == first ? first + slot : first;
}

static void swap_homes(struct region *one, struct region *two)
{
    uint32_t home = one->home;

    one->home = two->home;
    two->home = home;
}

static bool is_in_arena(const struct region *region)
{
    return region->at >= arena && region->at < arena + slot * REGIONS * 2;
}

/* Two regions, the lower number locked first: each to where the other was, where nobody else may go meanwhile. */
static void exchange(struct region *one, struct region *two)
{
    uint8_t *here = one->at, *there = two->at;
    uint32_t pages = one->pages;

    if (two->pages != pages || !is_in_arena(one) || !is_in_arena(two))
        return;
    move_to(one, pages, MREMAP_MAYMOVE | MREMAP_FIXED, free_slot(one));
    move_to(two, pages, MREMAP_MAYMOVE | MREMAP_FIXED, here);
    move_to(one, pages, MREMAP_MAYMOVE | MREMAP_FIXED, there);
    swap_homes(one, two);
}

static void drop_some(struct region *region, uint64_t *random)
{
    uint32_t first = random_number(random) % region->pages, count = 1 + random_number(random) % 40;

    if (count > region->pages - first)
        count = region->pages - first;
    CHECK(!madvise(region->at + (size_t)first * PAGE, (size_t)count * PAGE, MADV_DONTNEED));
    for (uint32_t page = first; page < first + count; page++)
        region->versions[page] = ZERO;
    drops++;
}

/* Another region is moved over this one's pages; this one begins anew with zeros, which the kernel does not report. */
static void bury(struct region *one, struct region *two)
{
    uint32_t pages = two->pages;

    if (one->pages > pages)
        return;
    move_to(one, one->pages, MREMAP_MAYMOVE | MREMAP_FIXED, two->at);
    if (pages > one->pages)
        CHECK(!munmap(one->at + (size_t)one->pages * PAGE, (size_t)(pages - one->pages) * PAGE));
    two->at = mmap(NULL, (size_t)pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(two->at != MAP_FAILED);
    set_versions((uint32_t)(two - regions), 0, pages, ZERO);
    swap_homes(one, two);
}

static void change(uint32_t number, uint64_t *random)
{
    struct region *region = &regions[number];
    uint32_t other = random_number(random) % REGIONS, grown = region_pages + random_number(random) % GROWN_MAX;
    unsigned which = random_number(random) % 64;

    if ((which < 12 || which == 63) && number < other) {
        pthread_mutex_lock(&regions[other].lock);
        if (which < 12)
            exchange(region, &regions[other]);
        else
            bury(region, &regions[other]);
        pthread_mutex_unlock(&regions[other].lock);
    } else if (which < 24) {
        move_to(region, region->pages, MREMAP_MAYMOVE | MREMAP_FIXED, free_slot(region));
    } else if (which < 40) {
        move_to(region, grown, MREMAP_MAYMOVE, NULL); /* larger or smaller, wherever there is room */
    } else if (which < 50) {
        move_and_leave(region);
    } else {
        drop_some(region, random);
    }
}

static void *remapper(void *argument)
{
    uint64_t random = seed + (uintptr_t)argument * 77777;
    struct timespec pause = {.tv_nsec = 1000000};

    while (!stop) {
        uint32_t number = random_number(&random) % REGIONS;

        pthread_mutex_lock(&regions[number].lock);
        change(number, &random);
        pthread_mutex_unlock(&regions[number].lock);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static void *toucher(void *argument)
{
    uint64_t random = seed + (uintptr_t)argument * 99999;
    struct timespec pause = {.tv_nsec = 50000};

    while (!stop) {
        uint32_t number = random_number(&random) % REGIONS;

        pthread_mutex_lock(&regions[number].lock);
        for (int i = 0; i < 4; i++) {
            uint32_t page = random_number(&random) % regions[number].pages;

            if (i % 2)
                touch(number, page);
            else
                check_page(number, page);
        }
        pthread_mutex_unlock(&regions[number].lock);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static void child(const uint32_t *locked, uint64_t random)
{
    for (int i = 0; i < 64; i++) {
        uint32_t number = locked[i % 4];

        if (i < 56)
            check_page(number, random_number(&random) % regions[number].pages);
        else
            touch(number, random_number(&random) % regions[number].pages);
        if (i % 16 == 15)
            move_to(&regions[number], regions[number].pages, MREMAP_MAYMOVE | MREMAP_FIXED,
                    free_slot(&regions[number]));
    }
    _exit(0);
}

/* By its number: after a restore it is no longer a child of this thread, only of this process. */
static void wait_for_child(pid_t *pid)
{
    int status;

    CHECK(!*pid || (waitpid(*pid, &status, 0) == *pid && status == 0));
    *pid = 0;
}

static void *forker(void *argument)
{
    uint64_t random = seed + (uintptr_t)argument * 55555;
    struct timespec pause = {.tv_nsec = 8000000};
    pid_t children[CHILDREN_MAX] = {0};

    for (unsigned turn = 0; !stop; turn++) {
        uint32_t first = random_number(&random) % (REGIONS - 4), locked[] = {first, first + 1, first + 2, first + 3};
        pid_t *pid = &children[turn % CHILDREN_MAX];

        wait_for_child(pid);
        for (int i = 0; i < 4; i++)
            pthread_mutex_lock(&regions[locked[i]].lock);
        *pid = fork();
        if (!*pid)
            child(locked, random_number(&random));
        for (int i = 0; i < 4; i++)
            pthread_mutex_unlock(&regions[locked[i]].lock);
        CHECK(*pid > 0);
        forks++;
        nanosleep(&pause, NULL);
    }
    for (int i = 0; i < CHILDREN_MAX; i++)
        wait_for_child(&children[i]);
    return NULL;
}

/* Looks every few ms: the signal that ends it may have come to any thread. */
static void storm(long ms)
{
    static void *(*const work[])(void *) = {toucher, toucher, remapper, remapper, forker};
    struct timespec pause = {.tv_nsec = 5000000};
    int64_t end = now_ns() + ms * 1000000;
    pthread_t threads[5];

    for (uintptr_t i = 0; i < 5; i++)
        CHECK(!pthread_create(&threads[i], NULL, work[i], (void *)(i + 1)));
    while (!stop && now_ns() < end)
        nanosleep(&pause, NULL);
    stop = 1;
    for (int i = 0; i < 5; i++)
        pthread_join(threads[i], NULL);
}

static void end_storm(int signal)
{
    (void)signal;
    stop = 1;
}

static void read_one(uint64_t *random)
{
    uint32_t number = random_number(random) % REGIONS;

    check_page(number, random_number(random) % region_pages);
}

static void make_regions(uint32_t mib)
{
    region_pages = mib * 256 / REGIONS;
    slot = ((size_t)region_pages + 2 * GROWN_MAX) * PAGE;
    CHECK(region_pages % STREAM_PAGES_MAX == 0);
    for (uint32_t i = 0; i < REGIONS; i++) {
        regions[i].home = i;
        regions[i].at = mmap(free_slot(&regions[i]), (size_t)region_pages * PAGE, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        CHECK(regions[i].at == arena + (size_t)i * 2 * slot);
        regions[i].pages = region_pages;
        regions[i].versions = calloc(region_pages + GROWN_MAX, sizeof(int32_t));
        pthread_mutex_init(&regions[i].lock, NULL);
    }
}

static void check_everything(void)
{
    for (uint32_t number = 0; number < REGIONS; number++)
        for (uint32_t page = 0; page < regions[number].pages; page++)
            check_page(number, page);
}

/* A process to be dumped and restored: it changes all the time, checks itself at SIGTERM, and reports by a file. */
static int be_target(uint32_t mib)
{
    FILE *result;

    make_regions(mib);
    for (uint32_t number = 0; number < REGIONS; number++)
        for (uint32_t page = 0; page < region_pages; page++)
            write_page(regions[number].at + (size_t)page * PAGE, number, page, 0);
    signal(SIGTERM, end_storm);
    result = fopen("running", "we");
    CHECK(result && !fclose(result));
    storm(INT32_MAX);
    check_everything();
    result = fopen("result", "we");
    CHECK(result && fprintf(result, "ok\n") > 0 && !fclose(result));
    return 0;
}

int main(int argc, char **argv)
{
    uint32_t mib = argc > 3 ? (uint32_t)atoi(argv[3]) : 256;
    long ms = argc > 4 ? atol(argv[4]) : 1500;
    unsigned late = argc > 7 ? (unsigned)atoi(argv[7]) : 0, asked = 0;
    enum late_end end = argc < 9 ? LATE_GOES_ON : strcmp(argv[8], "cut") ? LATE_STALL : LATE_CUT;
    struct receiver receiver;
    int status;
    char line[100];
    int64_t began;

    CHECK(argc > 2 && !chdir(argv[2]));
    seed = argc > 6 ? strtoull(argv[6], NULL, 10) * 1000003 + 1 : 1;
    if (!strcmp(argv[1], "target"))
        return be_target(mib);
    alarm(HANGS_AFTER_S);
    make_regions(mib);
    receiver_begin(&receiver, argv[1], argc > 5 ? argv[5] : "0");
    receiver_says(&receiver, "ready\n", line, sizeof(line));
    began = now_ns();
    send_everything(&receiver, late, end);
    began = now_ns() - began;
    receiver_says(&receiver, "round 1\n", line, sizeof(line));
    receiver_says(&receiver, "last 2\n", line, sizeof(line));
    become_lazy();
    receiver_says(&receiver, "restored 1\n", line, sizeof(line));
    CHECK(write(receiver.input, "thawed\n", 7) == 7 && !close(receiver.input));
    printf("storm %d\n", receiver.pid);
    fflush(stdout);
    if (ms)
        storm(ms);
    else
        measure_reads(read_one, seed);
    check_everything();
    if (late)
        receiver_says(&receiver, "fetched ", line, sizeof(line));
    receiver_says(&receiver, "filled ", line, sizeof(line));
    CHECK(waitpid(receiver.pid, &status, 0) == receiver.pid && status == 0);
    check_everything();
    if (late)
        asked = late_join();
    printf("ok: %" PRIu64 " remaps, %" PRIu64 " forks, %" PRIu64 " drops, %" PRIu64 " checks; received in %" PRId64
           " ms; %u pages asked for; %s", remaps, forks, drops, checks, began / 1000000, asked, line);
    return 0;
}
