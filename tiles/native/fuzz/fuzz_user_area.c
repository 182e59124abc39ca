/*
 * libFuzzer on the data that a tile takes from another: the User Area, and the program files that the loader reads.
 *
 *   clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined tiles/native/fuzz/fuzz_user_area.c \
 *         tiles/native/board/program_loader.c tiles/native/shared/{user_area,crc32c}.c -o fuzz_user_area \
 *         && ./fuzz_user_area -max_len=16384
 *
 * The first byte chooses. A User Area is changed, not made up: four bytes at a time, offset and value, in a good one,
 * which is then sealed, so the checksum hides nothing. The invariant: accepted data can be used. Its queue ends, its
 * extents lie in the user region, and taking every thread from the queue leaves it empty.
 */
#include <stdlib.h>
#include <string.h>

#include "../board/program_loader.h"

#define XFEATURES 7
#define XSIZE 832

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static struct user_area area;
static uint8_t image[USER_SIZE];

static void require(int condition)
{
    if (!condition)
        abort();
}

static void use(void)
{
    struct extent extents[THREAD_MAX + 2];
    int pieces = user_area_list_extents(&area, extents), taken = 0;

    for (int i = 0; i < pieces; i++)
        require(extents[i].offset % PAGE_SIZE == 0 && extents[i].size % PAGE_SIZE == 0 &&
                extents[i].size <= USER_SIZE - extents[i].offset);
    for (int slot = 0; slot < THREAD_MAX; slot++)
        area.threads[slot].affinity = ~1u;
    for (int slot; (slot = user_area_take_ready(&area, 1)) >= 0; taken++)
        require(slot < THREAD_MAX && taken < THREAD_MAX);
    require(area.ready_first == -1 && area.ready_last == -1);
}

static void change_area(const uint8_t *bytes, size_t count)
{
    user_area_init(&area, 1, XFEATURES, XSIZE);
    area.text_end = 0x2000;
    area.rodata_end = 0x3000;
    area.end = 0x10000;
    for (int i = 0; i < 4; i++)
        user_area_add_thread(&area, USER_BASE + 0x100, 0, 0);
    for (; count >= 4; bytes += 4, count -= 4) {
        uint32_t word;

        memcpy(&word, bytes, sizeof(word));
        ((uint8_t *)&area)[(word >> 8) % (5 * PAGE_SIZE)] = (uint8_t)word;
    }
    user_area_seal(&area);
    if (!user_area_check(&area, 1, XFEATURES, XSIZE))
        use();
}

static void load_program(const uint8_t *bytes, size_t count)
{
    static char *const words[] = {"fuzz", NULL};
    uint8_t *exact = malloc(count ? count : 1);

    require(exact != NULL);
    memcpy(exact, bytes, count);
    user_area_init(&area, 1, XFEATURES, XSIZE);
    if (!program_load(exact, count, 1, words, image, &area)) {
        user_area_seal(&area);
        require(!user_area_check(&area, 1, XFEATURES, XSIZE));
    }
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count == 0)
        return 0;
    if (bytes[0] & 1)
        change_area(bytes + 1, count - 1);
    else
        load_program(bytes + 1, count - 1);
    return 0;
}
