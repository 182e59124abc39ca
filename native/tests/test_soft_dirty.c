/*
 * Soft-dirty tracking on the running kernel: calls of mremap are counted, and if it has the bits, they show the writes.
 * Exits with 77, and prints why, when it has them not.
 */
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../pager/pagemap.h"
#include "../pager/soft_dirty.h"
#include "../pager/tracking.h"
#include "check.h"

enum { PAGE = 4096, SIZE = 4 << 20, SKIPPED = 77 };

static void test_moves_are_counted(void)
{
    uint8_t *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int64_t before, after;
    char why[256];

    CHECK(memory != MAP_FAILED && soft_dirty_moves() == -1);
    if (soft_dirty_open(why, sizeof(why))) {
        puts(why);
        exit(SKIPPED);
    }
    do { /* others may call it at any time */
        before = soft_dirty_moves();
        after = soft_dirty_moves();
    } while (before < 0 || after != before);
    CHECK(mremap(memory, SIZE, 2 * SIZE, MREMAP_MAYMOVE) != MAP_FAILED);
    while ((after = soft_dirty_moves()) < 0)
        continue;
    CHECK(after > before);
}

static void test_bits_tell_what_was_written(void)
{
    uint8_t *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t entries[SIZE / PAGE];
    FILE *map = fopen("/proc/self/pagemap", "r");
    char why[256];

    if (tracking_probe(TRACKING_SOFT_DIRTY, why, sizeof(why))) {
        puts(why);
        exit(SKIPPED);
    }
    CHECK(map && memory != MAP_FAILED);
    for (int at = 0; at < SIZE; at += PAGE)
        memory[at] = 1;
    CHECK(!soft_dirty_clear(getpid()));
    for (int at = 0; at < SIZE; at += 3 * PAGE)
        memory[at] = 2;
    CHECK(pread(fileno(map), entries, sizeof(entries), (off_t)((uintptr_t)memory / PAGE * 8)) == sizeof(entries));
    for (int page = 0; page < SIZE / PAGE; page++)
        CHECK(page % 3 || entries[page] & PAGEMAP_SOFT_DIRTY); /* of a huge page all are marked */
    fclose(map);
}

int main(void)
{
    test_moves_are_counted();
    test_bits_tell_what_was_written();
    return 0;
}
