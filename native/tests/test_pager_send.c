/* The pager's source: which mappings are pageable, sets of pages, and which frames of the stream are refused. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "../pager/mappings.h"
#include "../pager/page_set.h"
#include "../pager/stream.h"
#include "check.h"

enum { PAGE = 4096 };

static struct mapping parsed(const char *line)
{
    struct mapping mapping;

    CHECK(mapping_parse(line, &mapping) == 0);
    return mapping;
}

static void test_pageable_mappings(void)
{
    struct mapping heap = parsed("55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0                          [heap]\n");

    CHECK(heap.start == 0x55d0c0a00000 && heap.end == 0x55d0c0a21000);
    CHECK(heap.pageable && !heap.executable && !heap.is_stack);
    CHECK(parsed("7f0000000000-7f0000001000 ---p 00000000 00:00 0 \n").pageable);
    CHECK(parsed("7f0000000000-7f0000001000 rw-p 00000000 00:00 0                  [anon:a name]\n").pageable);
    CHECK(parsed("7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                  [stack]\n").pageable);
    CHECK(parsed("7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                  [stack]\n").is_stack);
}

static void test_mappings_that_are_not(void)
{
    CHECK(!parsed("7f0000000000-7f0000001000 rw-s 00000000 00:01 1024           /dev/zero (deleted)\n").pageable);
    CHECK(!parsed("7f0000000000-7f0000001000 rw-p 00002000 fe:00 77             /usr/lib/a b.so\n").pageable);
    CHECK(!parsed("7f0000000000-7f0000200000 rw-p 00000000 00:10 9              /anon_hugepage (deleted)\n").pageable);
    CHECK(!parsed("7f0000000000-7f0000004000 r--p 00000000 00:00 0                  [vvar]\n").pageable);
    CHECK(!parsed("7f0000000000-7f0000002000 r--p 00000000 00:00 0                  [vvar_vclock]\n").pageable);
    CHECK(!parsed("7f0000000000-7f0000002000 r-xp 00000000 00:00 0                  [vdso]\n").pageable);
    CHECK(parsed("7f0000000000-7f0000002000 r-xp 00000000 00:00 0                  [vdso]\n").executable);
    CHECK(!parsed("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0      [vsyscall]\n").pageable);
}

/* The kernel's own file system of shared memory, whose number is not the same everywhere. */
static struct mapping parsed_shared(const char *access, const char *name)
{
    struct stat status;
    char line[256];
    int file = memfd_create("x", MFD_CLOEXEC);

    CHECK(file >= 0 && !fstat(file, &status) && !close(file));
    snprintf(line, sizeof(line), "7f0000000000-7f0000002000 %s 00003000 %02x:%02x 4711    %s\n", access,
             major(status.st_dev), minor(status.st_dev), name);
    return parsed(line);
}

static void test_shared_memory(void)
{
    struct mapping shared = parsed_shared("rw-s", "/memfd:a b (deleted)");

    CHECK(shared.memory == MEMORY_SHARED && shared.writable && !shared.pageable);
    CHECK(shared.offset == 0x3000 && shared.inode == 4711 && shared.device);
    CHECK(parsed_shared("r--s", "/dev/zero (deleted)").memory == MEMORY_SHARED);
    CHECK(!parsed_shared("r--s", "/dev/zero (deleted)").writable);
    CHECK(parsed_shared("rw-s", "/SYSV0000abcd (deleted)").memory == MEMORY_SYSV);
    CHECK(parsed_shared("rw-p", "/memfd:x (deleted)").memory == MEMORY_OTHER);
    CHECK(parsed("7f0000000000-7f0000002000 rw-s 00000000 00:fff00 77      /dev/shm/x\n").memory == MEMORY_OTHER);
    CHECK(parsed("7f0000000000-7f0000002000 rw-s 00000000 fe:00 77      /memfd:x\n").memory == MEMORY_OTHER);
    CHECK(parsed("7f0000000000-7f0000200000 rw-p 00000000 00:10 9              /anon_hugepage (deleted)\n").memory ==
          MEMORY_HUGE_PRIVATE);
    CHECK(parsed("7f0000000000-7f0000200000 rw-s 00000000 00:10 9              /anon_hugepage (deleted)\n").memory ==
          MEMORY_OTHER);
    CHECK(parsed("7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n").memory == MEMORY_OTHER);
}

static void test_lines_that_are_none(void)
{
    static const char *const wrong[] = {"", "\n", "Size:   4 kB\n", "VmFlags: rd wr mr\n", "7f00-7e00 rw-p 0 00:00 0\n",
                                        "7f00-7f00 rw-p 0 00:00 0\n", "7f00-8f00 rwp 0 00:00 0\n", "7f00 rw-p 0 0:0 0\n"};
    struct mapping mapping;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK(mapping_parse(wrong[i], &mapping) == -EPROTO);
}

static void test_flags(void)
{
    struct mapping mapping = {.pageable = true};

    mapping_apply_flags("VmFlags: rd wr mr mw me ac sd \n", &mapping);
    mapping_apply_flags("Locked:                0 kB lo\n", &mapping);
    CHECK(mapping.pageable);
    mapping_apply_flags("VmFlags: rd wr mr mw me lo ac sd \n", &mapping);
    CHECK(!mapping.pageable);
    mapping.pageable = true;
    mapping_apply_flags("VmFlags: rd wr mr mw me de ht sd \n", &mapping);
    CHECK(!mapping.pageable);
}

static void test_finding_mappings(void)
{
    struct mapping list[] = {{.start = 0x1000, .end = 0x3000, .pageable = true},
                             {.start = 0x3000, .end = 0x4000},
                             {.start = 0x8000, .end = 0x9000, .pageable = true}};
    struct mappings mappings = {list, 3, 3};

    CHECK(mappings_find_pageable(&mappings, 0) == &list[0] && mappings_find_pageable(&mappings, 0x2000) == &list[0]);
    CHECK(mappings_find_pageable(&mappings, 0x3000) == &list[2] && mappings_find_pageable(&mappings, 0x8000) == &list[2]);
    CHECK(!mappings_find_pageable(&mappings, 0x9000));
}

struct runs {
    uint64_t start[16], end[16];
    size_t count;
};

static int note(void *context, uint64_t start, uint64_t end)
{
    struct runs *runs = context;

    runs->start[runs->count] = start / PAGE;
    runs->end[runs->count++] = end / PAGE;
    return runs->count == 16;
}

static struct runs runs_of(const struct page_set *set)
{
    struct runs runs = {.count = 0};

    page_set_each(set, note, &runs);
    return runs;
}

static void test_page_sets(void)
{
    struct page_set set = {0}, others = {0};
    struct runs runs;

    CHECK(!page_set_add(&set, 1000 * PAGE, 1100 * PAGE)); /* over the end of a block */
    CHECK(!page_set_add(&set, 3 * PAGE, 4 * PAGE) && !page_set_add(&set, 64 * PAGE, 128 * PAGE));
    runs = runs_of(&set);
    CHECK(runs.count == 4 && runs.start[0] == 3 && runs.end[0] == 4 && runs.start[1] == 64 && runs.end[1] == 128);
    CHECK(runs.start[2] == 1000 && runs.end[2] == 1024 && runs.start[3] == 1024 && runs.end[3] == 1100);
    CHECK(!page_set_add(&others, 0, 65 * PAGE) && !page_set_add(&others, 1024 * PAGE, 9000 * PAGE));
    page_set_remove_all(&set, &others);
    runs = runs_of(&set);
    CHECK(runs.count == 2 && runs.start[0] == 65 && runs.end[0] == 128 && runs.end[1] == 1024);
    CHECK(!page_set_add_all(&set, &others) && runs_of(&set).end[0] == 128);
    page_set_clear(&set);
    CHECK(!page_set_add_common(&set, &others, 10 * PAGE, 1030 * PAGE));
    runs = runs_of(&set);
    CHECK(runs.count == 2 && runs.start[0] == 10 && runs.end[0] == 65 && runs.start[1] == 1024 && runs.end[1] == 1030);
    page_set_clear(&set);
    CHECK(!page_set_add_common(&set, &others, 66 * PAGE, 1024 * PAGE) && runs_of(&set).count == 0);
    CHECK(!page_set_add_common(&set, &others, 0, UINT64_C(1) << 57) && runs_of(&set).start[0] == 0);
    page_set_clear(&set);
    CHECK(runs_of(&set).count == 0 && !page_set_add(&set, 5 * PAGE, 5 * PAGE) && runs_of(&set).count == 0);
    page_set_free(&set);
    page_set_free(&others);
}

static int decoded(struct stream_frame frame)
{
    uint8_t bytes[STREAM_HEADER];
    struct stream_frame back;
    int error;

    stream_encode(&frame, bytes);
    error = stream_decode(bytes, &back);
    CHECK(!memcmp(&frame, &back, sizeof(frame)));
    return error;
}

static void test_frames(void)
{
    CHECK(!decoded((struct stream_frame){'D', 7, 0x7f0000000000, 2, 2 * PAGE, 99, 3}));
    CHECK(!decoded((struct stream_frame){'Z', 7, 0x7f0000000000, 1 << 20, 0, 0, 4}));
    CHECK(!decoded((struct stream_frame){.type = 'X', .pid = 7}) && !decoded((struct stream_frame){'R', 0, 1, 0, 0, 0, 9}));
    CHECK(!decoded((struct stream_frame){.type = 'L', .address = 2}) && !decoded((struct stream_frame){.type = 'A', .address = 2}));
    CHECK(!decoded((struct stream_frame){'M', 7, STREAM_BLOCK * PAGE, STREAM_BLOCK, STREAM_BITS, 99, 5}));
    CHECK(!decoded((struct stream_frame){.type = 'P', .address = 2}) && !decoded((struct stream_frame){.type = 'F'}));
    CHECK(!decoded((struct stream_frame){'Q', 7, PAGE, 1, 0, 0, 6}));
}

static void test_frames_that_are_refused(void)
{
    const struct stream_frame wrong[] = {
        {'D', 0, PAGE, 1, PAGE, 0, 0},
        {'D', 7, PAGE + 1, 1, PAGE, 0, 0},
        {'D', 7, PAGE, 0, 0, 0, 0},
        {'D', 7, PAGE, 1, PAGE - 1, 0, 0},
        {'D', 7, PAGE, STREAM_PAGES_MAX + 1, (STREAM_PAGES_MAX + 1) * PAGE, 0, 0},
        {'D', 7, (1UL << 57) - PAGE, 2, 2 * PAGE, 0, 0},
        {'Z', 7, PAGE, 1, PAGE, 0, 0},
        {'Z', 7, PAGE, 1, 0, 1, 0},
        {'X', 0, 0, 0, 0, 0, 0},
        {'X', 7, PAGE, 0, 0, 0, 0},
        {'R', 0, 0, 0, 0, 0, 0},
        {'L', 7, 1, 0, 0, 0, 0},
        {'A', 0, 1, 0, 4, 0, 0},
        {'Q', 7, PAGE, 1, PAGE, 0, 0},
        {'Q', 7, PAGE, 2, 0, 0, 0},
        {'F', 0, PAGE, 0, 0, 0, 0},
        {'P', 7, 1, 0, 0, 0, 0},
        {'M', 7, PAGE, STREAM_BLOCK, STREAM_BITS, 0, 0},
        {'M', 7, STREAM_BLOCK * PAGE, 1, STREAM_BITS, 0, 0},
        {'M', STREAM_OBJECTS, STREAM_BLOCK * PAGE, STREAM_BLOCK, STREAM_BITS, 0, 0},
    };

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK(decoded(wrong[i]) == -EPROTO);
}

int main(void)
{
    test_pageable_mappings();
    test_mappings_that_are_not();
    test_shared_memory();
    test_lines_that_are_none();
    test_flags();
    test_finding_mappings();
    test_page_sets();
    test_frames();
    test_frames_that_are_refused();
    return 0;
}
