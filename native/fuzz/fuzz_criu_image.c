/*
 * libFuzzer on the images that arrive with a move, as wherry-verify reads them.
 *
 *   clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined native/fuzz/fuzz_criu_image.c \
 *         native/verify/image_pages.c native/verify/criu_image.c -o fuzz_criu_image && ./fuzz_criu_image -max_len=4096
 *
 * It works in ./images. The bytes are split into a pagemap, one of shared memory, mappings and a thread; all get the
 * magic numbers. The invariant: a run of pages that is reported does not wrap around.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../verify/image_pages.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static int directory = -1;

static int check(void *context, uint32_t pid, uint64_t address, int file, uint64_t offset, uint64_t count)
{
    (void)context, (void)pid, (void)offset;
    if (file < 0 || !count || address + count < address)
        abort();
    return 0;
}

static void put(const char *name, const uint8_t *bytes, size_t count)
{
    static const uint8_t magic[8] = {0x19, 0x43, 0x56, 0x54};
    int file = openat(directory, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (file < 0 || write(file, magic, sizeof(magic)) < 0 || (count && write(file, bytes, count) < 0))
        abort();
    close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static const char *const names[] = {"pagemap-1.img", "pagemap-shmem-2.img", "mm-1.img", "core-1.img"};

    if (directory < 0) {
        if ((mkdir("images", 0700) && errno != EEXIST)
            || (directory = open("images", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
            abort();
        put("pages-1.img", bytes, 0);
    }
    for (size_t i = 0; i < 4; i++) {
        size_t part = count / (4 - i);

        put(names[i], bytes, part);
        bytes += part, count -= part;
    }
    pages_each(directory, check, NULL);
    return 0;
}
