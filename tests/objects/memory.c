/* Memory and files of every kind, written all the time. Every byte of a page follows from its number and its version. */
#include "objects.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/shm.h>

enum {
    PAGE = 4096,
    WORDS = PAGE / sizeof(uint64_t),
    PAGES = 512,
    WRITTEN_IN_A_LAP = 8,
    FREED_AT_ONCE = 16,
    HUGE_PAGE = 2 << 20,
    PATIENCE_MS = 30000,
};

struct region {
    uint64_t (*pages)[WORDS];
    size_t first, count; /* the pages of `first` up to, not with, `count` are mapped */
    uint32_t *versions; /* 0: never written, so zero */
    uint8_t *freed;     /* pages that the kernel may take away; NULL: none */
};

static struct region region;
static uint64_t state = 88172645463325252;
static int fd = -1;

static size_t below(size_t limit)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % limit;
}

static uint64_t next_word(uint64_t word)
{
    word ^= word << 13, word ^= word >> 7;
    return word ^ word << 17;
}

static uint64_t first_word(size_t number, uint32_t version)
{
    return ((uint64_t)number << 32 | version) * UINT64_C(0x9e3779b97f4a7c15) | 1;
}

static void fill_page(uint64_t words[WORDS], size_t number, uint32_t version)
{
    uint64_t word = first_word(number, version);

    for (size_t i = 0; i < WORDS; i++)
        words[i] = word = next_word(word);
}

static const char *check_page(const uint64_t words[WORDS], size_t number, uint32_t version)
{
    uint64_t word = first_word(number, version);

    for (size_t i = 0; i < WORDS; i++) {
        word = next_word(word);
        if (words[i] != (version ? word : 0))
            return wrong("page %zu, version %u, word %zu is %016lx instead of %016lx", number, version, i,
                         (unsigned long)words[i], version ? (unsigned long)word : 0);
    }
    return OK;
}

static int is_zero(const uint64_t words[WORDS])
{
    for (size_t i = 0; i < WORDS; i++)
        if (words[i])
            return 0;
    return 1;
}

static const char *check_of(size_t number)
{
    if (region.freed && region.freed[number] && is_zero(region.pages[number]))
        return OK;
    return check_page(region.pages[number], number, region.versions[number]);
}

static const char *check_all(void)
{
    for (size_t number = region.first; number < region.count; number++) {
        const char *problem = check_of(number);

        if (*problem)
            return problem;
    }
    return OK;
}

static const char *lap(void)
{
    for (int i = 0; i < WRITTEN_IN_A_LAP; i++) {
        size_t number = region.first + below(region.count - region.first);
        const char *problem = check_of(number);

        if (*problem)
            return problem;
        fill_page(region.pages[number], number, ++region.versions[number]);
        if (region.freed)
            region.freed[number] = 0;
    }
    return check_all();
}

/* Half of it is written; the rest begins as holes. */
static const char *begin(void *pages, size_t count)
{
    NEED(pages != MAP_FAILED);
    region.pages = pages;
    region.count = count;
    if (!region.versions)
        region.versions = calloc(count, sizeof *region.versions);
    NEED(region.versions);
    for (size_t i = 0; i < count; i += 2)
        fill_page(region.pages[i], i, ++region.versions[i]);
    return OK;
}

static void *map(int flags, int file)
{
    return mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, flags, file, 0);
}

static const char *make_private(void) { return begin(map(MAP_PRIVATE | MAP_ANONYMOUS, -1), PAGES); }

static const char *make_huge(void)
{
    void *pages = mmap(NULL, 2 * HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

    return begin(pages, 2 * HUGE_PAGE / PAGE);
}

static const char *make_freed(void)
{
    NEED((region.freed = calloc(PAGES, 1)));
    return make_private();
}
static const char *work_freed(void)
{
    size_t first = below(PAGES - FREED_AT_ONCE);

    NEED(!madvise(region.pages[first], FREED_AT_ONCE * PAGE, MADV_FREE));
    memset(region.freed + first, 1, FREED_AT_ONCE);
    return lap();
}

/* A file and a shared mapping of it have the same contents; a lap reads another page of the file each time. */
static const char *lap_of_file(void)
{
    static uint64_t words[WORDS];
    const char *problem = lap();
    size_t number = below(region.count);

    if (*problem)
        return problem;
    NEED(pread(fd, words, PAGE, (off_t)(number * PAGE)) == PAGE);
    return check_page(words, number, region.versions[number]);
}

static const char *make_of(int file)
{
    fd = file;
    NEED(fd >= 0 && !ftruncate(fd, PAGES * PAGE));
    return begin(map(MAP_SHARED, fd), PAGES);
}
static const char *make_resized(void) { return make_of(memfd_create("resized", 0)); }
static const char *make_remapped(void) { return make_of(memfd_create("remapped", 0)); }
static const char *make_memfd(void) { return make_of(memfd_create("busy", 0)); }
static const char *attach(int segment)
{
    void *pages = shmat(segment, NULL, 0);

    return begin(pages == (void *)-1 ? MAP_FAILED : pages, PAGES);
}
static const char *make_sysv(void) { return attach(shmget(IPC_PRIVATE, PAGES * PAGE, 0600)); }
static const char *make_sysv_removed(void)
{
    int segment = shmget(IPC_PRIVATE, PAGES * PAGE, 0600);
    const char *problem = attach(segment);

    NEED(!shmctl(segment, IPC_RMID, NULL));
    return problem;
}

/* Shorter, longer, with holes: pages that were cut off or punched out are zero. */
static const char *work_resized(void)
{
    size_t count = PAGES / 4 + below(PAGES * 3 / 4), hole = below(count);

    NEED(!ftruncate(fd, (off_t)(count * PAGE)));
    if (count < region.count)
        memset(&region.versions[count], 0, (region.count - count) * sizeof *region.versions);
    region.count = count;
    NEED(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(hole * PAGE), PAGE));
    region.versions[hole] = 0;
    return lap_of_file();
}

/* Somewhere else after each lap; meanwhile it is mapped nowhere, and written nevertheless. */
static const char *work_remapped(void)
{
    static uint64_t words[WORDS];
    const char *problem = lap_of_file();
    size_t number = below(PAGES);

    if (*problem)
        return problem;
    NEED(!munmap(region.pages, PAGES * PAGE));
    fill_page(words, number, ++region.versions[number]);
    NEED(pwrite(fd, words, PAGE, (off_t)(number * PAGE)) == PAGE);
    region.pages = map(MAP_SHARED, fd);
    NEED(region.pages != MAP_FAILED);
    return check_all();
}

/* Written by the mapping that there is, and by nobody else any more. */
static const char *make_sealed(void)
{
    const char *problem = make_of(memfd_create("sealed", MFD_ALLOW_SEALING));

    if (*problem)
        return problem;
    NEED(!fcntl(fd, F_ADD_SEALS, 0x10 | F_SEAL_SHRINK | F_SEAL_GROW)); /* F_SEAL_FUTURE_WRITE */
    return OK;
}

/* A file that has no name any more, mapped. */
static const char *make_removed(void)
{
    int file = open("/dev/shm/busy-removed", O_RDWR | O_CREAT, 0600);

    NEED(file >= 0 && !unlink("/dev/shm/busy-removed"));
    return make_of(file);
}

static const char *make_dev_shm(void) { return make_of(open("/dev/shm/busy", O_RDWR | O_CREAT, 0600)); }
static const char *make_file_shared(void) { return make_of(open("/tmp/busy-shared", O_RDWR | O_CREAT, 0600)); }

/* Pages that were written are the process's own, all others the file's, which nobody writes. */
static const char *make_file_private(void)
{
    static uint64_t words[WORDS];

    fd = open("/tmp/busy-private", O_RDWR | O_CREAT, 0600);
    NEED(fd >= 0 && (region.versions = calloc(PAGES, sizeof *region.versions)));
    for (size_t i = 0; i < PAGES; i++) {
        fill_page(words, i, region.versions[i] = 1);
        NEED(write(fd, words, PAGE) == PAGE);
    }
    return begin(map(MAP_PRIVATE, fd), PAGES);
}
static const char *work_file_private(void)
{
    static uint64_t words[WORDS];
    size_t number = below(PAGES);
    const char *problem = lap();

    if (*problem)
        return problem;
    NEED(pread(fd, words, PAGE, (off_t)(number * PAGE)) == PAGE);
    return check_page(words, number, 1);
}

/* Two processes by turns. */
struct turns {
    _Atomic int is_childs;
    char problem[256];
};
static struct turns *turns;

static const char *await_turn(int is_childs)
{
    for (int ms = 0; atomic_load(&turns->is_childs) != is_childs; ms++) {
        if (ms >= PATIENCE_MS)
            return "the other process does not answer";
        sleep_ms(1);
    }
    return turns->problem;
}

static const char *share_turns(void)
{
    const int flags = MAP_SHARED | MAP_ANONYMOUS;

    region.versions = mmap(NULL, PAGES * sizeof *region.versions, PROT_READ | PROT_WRITE, flags, -1, 0);
    turns = mmap(NULL, sizeof *turns, PROT_READ | PROT_WRITE, flags, -1, 0);
    NEED(region.versions != MAP_FAILED && turns != MAP_FAILED);
    return OK;
}

static _Noreturn void take_turns(void)
{
    while (!*await_turn(1)) {
        snprintf(turns->problem, sizeof turns->problem, "%s", lap());
        atomic_store(&turns->is_childs, 0);
    }
    _exit(0);
}

static const char *make_anon_shared(void)
{
    const char *problem = share_turns();

    if (!*problem)
        problem = begin(map(MAP_SHARED | MAP_ANONYMOUS, -1), PAGES);
    if (*problem || fork_helper())
        return problem;
    take_turns();
}

/* Neither of the two has all of it mapped. */
static const char *make_parts(void)
{
    const size_t part = PAGES * 3 / 4, first = PAGES - part;
    const char *problem = share_turns();

    if (*problem)
        return problem;
    fd = memfd_create("parts", 0);
    NEED(fd >= 0 && !ftruncate(fd, PAGES * PAGE));
    problem = begin(mmap(NULL, part * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), part);
    if (*problem || fork_helper())
        return problem;
    munmap(region.pages, part * PAGE);
    region.pages = mmap(NULL, part * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(first * PAGE));
    if (region.pages == MAP_FAILED)
        _exit(1);
    region.pages -= first;
    region.first = first;
    region.count = PAGES;
    take_turns();
}

/* Each of the two has pages of its own, of a size of which there are few. */
static const char *make_huge_forked(void)
{
    void *pages = mmap(NULL, HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    const char *problem;

    turns = mmap(NULL, sizeof *turns, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(turns != MAP_FAILED);
    problem = begin(pages, HUGE_PAGE / PAGE);
    if (*problem || fork_helper())
        return problem;
    take_turns();
}

static const char *work_turns(void)
{
    const char *problem = lap();

    if (*problem)
        return problem;
    atomic_store(&turns->is_childs, 1);
    return await_turn(0);
}

/* A file that has no name any more, by read and write. */
static const char *make_deleted_file(void)
{
    fd = open("/tmp/busy-deleted", O_RDWR | O_CREAT, 0600);
    region.count = PAGES;
    NEED(fd >= 0 && !unlink("/tmp/busy-deleted") && !ftruncate(fd, PAGES * PAGE));
    NEED((region.versions = calloc(PAGES, sizeof *region.versions)));
    return OK;
}
static const char *work_deleted_file(void)
{
    static uint64_t words[WORDS];

    for (int i = 0; i < WRITTEN_IN_A_LAP; i++) {
        size_t number = below(PAGES);

        fill_page(words, number, ++region.versions[number]);
        NEED(pwrite(fd, words, PAGE, (off_t)(number * PAGE)) == PAGE);
    }
    for (size_t number = 0; number < PAGES; number++) {
        const char *problem;

        NEED(pread(fd, words, PAGE, (off_t)(number * PAGE)) == PAGE);
        problem = check_page(words, number, region.versions[number]);
        if (*problem)
            return problem;
    }
    return OK;
}

#define CASE(name, work) {"busy_" #name, make_##name, work}
const struct activity mappings[] = {
    CASE(private, lap), CASE(huge, lap), CASE(freed, work_freed), CASE(memfd, lap_of_file), CASE(dev_shm, lap_of_file),
    CASE(file_shared, lap_of_file), CASE(file_private, work_file_private), CASE(anon_shared, work_turns),
    CASE(deleted_file, work_deleted_file), CASE(sysv, lap), CASE(sysv_removed, lap),
    CASE(resized, work_resized), CASE(remapped, work_remapped), CASE(sealed, lap_of_file), CASE(removed, lap_of_file), CASE(parts, work_turns),
    CASE(huge_forked, work_turns), {0},
};
