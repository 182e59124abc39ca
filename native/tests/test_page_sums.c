/* Sums of pages that were sent, and which pages a tracker without write protection reads. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <wherry/page_sums.h>
#include "../pager/pagemap.h"
#include "../pager/pagemap_tracker.h"
#include "check.h"

enum { PAGE = 4096 };

#define HIGH (UINT64_C(8) << 30)

static const uint64_t CLEAN = PAGEMAP_PRESENT | PAGEMAP_EXCLUSIVE;

static const uint8_t *filled(int value)
{
    static uint8_t page[PAGE];

    memset(page, value, PAGE);
    return page;
}

static void test_what_was_not_given_is_zero(void)
{
    struct page_sums sums = {0};

    CHECK(!page_sums_changed(&sums, 7, filled(0)) && !sums.count);
    CHECK(page_sums_changed(&sums, 7, filled(1)) && !page_sums_changed(&sums, 7, filled(1)));
    CHECK(page_sums_changed(&sums, 7, filled(2)) && page_sums_changed(&sums, 7, filled(0)));
    CHECK(!page_sums_changed(&sums, 7, filled(0)) && !page_sums_changed(&sums, 8, filled(0)));
    page_sums_free(&sums);
    CHECK(!sums.count && !sums.windows);
}

static void test_one_byte_makes_a_difference(void)
{
    struct page_sums sums = {0};
    uint8_t page[PAGE] = {0};

    for (int at = 0; at < PAGE; at += 5) {
        page[at] = 1;
        CHECK(page_sums_changed(&sums, 1, page) && !page_sums_changed(&sums, 1, page));
    }
    page_sums_free(&sums);
}

static void test_dropped_pages_are_zero(void)
{
    struct page_sums sums = {0};

    for (uint64_t page = 0; page < 1000; page++)
        CHECK(page_sums_changed(&sums, page, filled(3)));
    page_sums_clear(&sums, 100, 900);
    CHECK(sums.count == 4 && !page_sums_changed(&sums, 99, filled(3)) && !page_sums_changed(&sums, 900, filled(3)));
    for (uint64_t page = 100; page < 900; page++)
        CHECK(!page_sums_changed(&sums, page, filled(0)));
    CHECK(page_sums_changed(&sums, 500, filled(3)) && page_sums_changed(&sums, 100, filled(3)));
    page_sums_clear(&sums, 500, 500);
    page_sums_clear(&sums, 2000, UINT64_C(1) << 45);
    CHECK(!page_sums_changed(&sums, 500, filled(3)));
    page_sums_clear(&sums, 0, UINT64_C(1) << 45);
    CHECK(!sums.count && page_sums_changed(&sums, 0, filled(3)));
    page_sums_free(&sums);
}

/* Against a plain table, in an order in which blocks come and go everywhere. */
static void test_random_pages(void)
{
    enum { PAGES = 4096 };
    static uint8_t values[PAGES];
    struct page_sums sums = {0};

    srand(1);
    for (int i = 0; i < 60000; i++) {
        int page = rand() % PAGES, value = rand() % 3;

        if (rand() % 50 == 0) {
            int end = page + rand() % 300;

            end = end < PAGES ? end : PAGES;
            page_sums_clear(&sums, (uint64_t)page * 3, (uint64_t)end * 3);
            memset(values + page, 0, (size_t)(end - page));
        } else {
            CHECK(page_sums_changed(&sums, (uint64_t)page * 3, filled(value)) == (values[page] != value));
            values[page] = (uint8_t)value;
        }
    }
    page_sums_free(&sums);
}

/* A pagemap is a file of entries, so a file is a pagemap. */
static struct process process_of(const uint64_t *entries, size_t count, uint64_t at)
{
    static struct mapping list[3];
    struct process process = {.mappings = {list, 3, 3}, .pagemap = memfd_create("pagemap", MFD_CLOEXEC)};
    off_t place = (off_t)(at / PAGE * sizeof(*entries));

    list[0] = (struct mapping){.start = at, .end = at + count / 2 * PAGE, .pageable = true};
    list[1] = (struct mapping){.start = list[0].end, .end = at + count * PAGE, .pageable = true};
    list[2] = (struct mapping){.start = list[1].end, .end = list[1].end + 4 * PAGE};
    CHECK(process.pagemap >= 0);
    CHECK(pwrite(process.pagemap, entries, count * sizeof(*entries), place) == (ssize_t)(count * sizeof(*entries)));
    return process;
}

/* Bit n: page n of the mappings. */
static int note(void *context, uint64_t start, uint64_t end, uint64_t categories)
{
    uint64_t *pages = context, base = start & ~UINT64_C(0xfffff);

    (void)categories;
    for (uint64_t at = start; at < end && at < base + 64 * PAGE; at += PAGE)
        *pages |= UINT64_C(1) << (at - base) / PAGE;
    return 0;
}

static void test_pages_with_contents_are_seen(void)
{
    uint64_t entries[10] = {CLEAN, CLEAN, 0, PAGEMAP_SWAPPED, PAGEMAP_SWAPPED, CLEAN,
                            PAGEMAP_PRESENT, PAGEMAP_SWAPPED | PAGEMAP_GUARD, CLEAN, 0};
    struct process process = process_of(entries, 10, HIGH);
    uint64_t pages = 0;

    CHECK(!pagemap_see_contents(&process, note, &pages) && pages == 0x17b);
    close(process.pagemap);
}

static int note_ends(void *context, uint64_t start, uint64_t end, uint64_t categories)
{
    uint64_t **next = context;

    (void)categories;
    *(*next)++ = start;
    *(*next)++ = end;
    return 0;
}

static void test_holes_are_all_the_rest(void)
{
    uint64_t entries[4] = {CLEAN, 0, 0, PAGEMAP_SWAPPED | PAGEMAP_GUARD}, found[16], *next = found;
    struct process process = process_of(entries, 4, HIGH);
    uint64_t expected[] = {0, HIGH, HIGH + PAGE, HIGH + 2 * PAGE, HIGH + 2 * PAGE, HIGH + 4 * PAGE,
                           HIGH + 4 * PAGE, PROCESS_ADDRESS_END};

    CHECK(!pagemap_see_holes(&process, note_ends, &next));
    CHECK(next - found == 8 && !memcmp(found, expected, sizeof(expected)));
    close(process.pagemap);
}

/* Longer than one reading; a process that has ended has an empty pagemap. */
static void test_long_runs(void)
{
    enum { COUNT = 20000 };
    static uint64_t entries[COUNT];
    uint64_t found[8], *next = found;
    struct process process;

    for (int i = 0; i < COUNT; i++)
        entries[i] = i == 10000 ? 0 : CLEAN;
    process = process_of(entries, COUNT, HIGH);
    process.mappings.list[0].end = HIGH + (uint64_t)COUNT * PAGE;
    process.mappings.list[1].pageable = false;
    CHECK(!pagemap_see_contents(&process, note_ends, &next) && next - found == 4);
    CHECK(found[0] == HIGH && found[1] == HIGH + UINT64_C(10000) * PAGE && found[2] == found[1] + PAGE);
    CHECK(found[3] == HIGH + (uint64_t)COUNT * PAGE && !ftruncate(process.pagemap, 0));
    CHECK(pagemap_see_contents(&process, note_ends, &next) == -ESRCH);
    close(process.pagemap);
}

int main(void)
{
    test_what_was_not_given_is_zero();
    test_one_byte_makes_a_difference();
    test_dropped_pages_are_zero();
    test_random_pages();
    test_pages_with_contents_are_seen();
    test_holes_are_all_the_rest();
    test_long_runs();
    return 0;
}
