/* The loader takes a good program and refuses, in words, whatever a file may be instead. */
#include "../board/program_loader.h"

#include <elf.h>
#include <string.h>

#include "../shared/cpu.h"
#include "check.h"

#define TEXT 0x1000 /* offset of the only code page in the file */
#define FILE_SIZE 0x3000

static uint8_t file[FILE_SIZE], image[USER_SIZE];
static struct user_area area;
static Elf64_Ehdr *header = (Elf64_Ehdr *)file;
static Elf64_Phdr *segments = (Elf64_Phdr *)(file + sizeof(Elf64_Ehdr));
static struct image_head *head = (struct image_head *)(file + TEXT);

static void make(void)
{
    memset(file, 0, sizeof(file));
    memcpy(header->e_ident, ELFMAG, SELFMAG);
    header->e_ident[EI_CLASS] = ELFCLASS64;
    header->e_ident[EI_DATA] = ELFDATA2LSB;
    header->e_type = ET_EXEC;
    header->e_machine = EM_X86_64;
    header->e_phoff = sizeof(*header);
    header->e_phentsize = sizeof(*segments);
    header->e_phnum = 2;
    segments[0] = (Elf64_Phdr){PT_LOAD, PF_R | PF_X, TEXT, USER_BASE, USER_BASE, 0x200, 0x200, 0x1000};
    segments[1] = (Elf64_Phdr){PT_LOAD, PF_R | PF_W, 0x2000, USER_BASE + 0x2000, 0, 0x100, 0x3000, 0x1000};
    *head = (struct image_head){TILE_MAGIC, TILE_ABI, USER_BASE + 0x40, USER_BASE + 0x1000, USER_BASE + 0x2000,
                                USER_BASE + 0x5000};
    file[0x2000] = 42;
}

static const char *load(size_t size)
{
    static char *const words[] = {"prog", "one", NULL};

    user_area_init(&area, 1, cpu_xfeatures(), cpu_xsize());
    return program_load(file, size, 2, words, image, &area);
}

static void test_good(void)
{
    uint64_t address;

    make();
    memset(image, 0xee, sizeof(image));
    CHECK(load(sizeof(file)) == NULL);
    CHECK(area.text_end == 0x1000 && area.rodata_end == 0x2000 && area.end == 0x5000);
    CHECK(image[0x2000] == 42 && image[0x2100] == 0 && image[0x4fff] == 0);
    CHECK(area.threads[0].context.rip == USER_BASE + 0x40 && area.threads[0].context.rsp % 16 == 8);
    CHECK(area.threads[0].context.rdi == 2);
    memcpy(&address, image + ARGUMENTS_OFFSET + 8, sizeof(address));
    CHECK(strcmp((char *)image + (address - USER_BASE), "one") == 0);
    user_area_seal(&area);
    CHECK(user_area_check(&area, 1, cpu_xfeatures(), cpu_xsize()) == NULL);
}

#define REFUSED(change, because)                        \
    do {                                                \
        const char *why;                                \
                                                        \
        make();                                         \
        change;                                         \
        why = load(sizeof(file));                       \
        CHECK(why && strstr(why, because));             \
    } while (0)

static void test_refused(void)
{
    REFUSED(file[0] = 0, "not an ELF");
    REFUSED(header->e_machine = EM_AARCH64, "x86-64");
    REFUSED(header->e_type = ET_DYN, "fixed address");
    REFUSED(header->e_phoff = 1ull << 40, "outside the file");
    REFUSED(header->e_phnum = 0xffff, "outside the file");
    REFUSED(segments[1].p_type = PT_TLS, "thread-local");
    REFUSED(segments[1].p_type = PT_INTERP, "dynamically");
    REFUSED(segments[0].p_vaddr = 0x400000, "wrong address");
    REFUSED(segments[1].p_vaddr = USER_BASE + USER_SIZE, "wrong address");
    REFUSED(segments[1].p_vaddr = -0x1000ull, "wrong address");
    REFUSED(segments[1].p_memsz = ARGUMENTS_OFFSET, "too large");
    REFUSED(segments[1].p_memsz = -1ull, "too large");
    REFUSED(segments[1].p_vaddr = USER_BASE + ARGUMENTS_OFFSET, "too large");
    REFUSED(segments[1].p_filesz = 0x4000, "outside the file");
    REFUSED(segments[1].p_offset = -0x100ull, "outside the file");
    REFUSED(segments[1].p_flags |= PF_X, "writable and executable");
    REFUSED(segments[1].p_vaddr = USER_BASE + 0x1000, "rights");
    REFUSED(segments[0].p_memsz = 0x1800, "rights");
    REFUSED(head->magic++, "image head");
    REFUSED(head->abi++, "another version");
    REFUSED(head->entry = USER_BASE + 0x1000, "bounds");
    REFUSED(head->entry = USER_BASE, "bounds");
    REFUSED(head->end = USER_BASE + USER_SIZE, "bounds");
    REFUSED(head->text_end++, "bounds");
    make();
    for (size_t size = 0; size < 0x2100; size += 13)
        CHECK(load(size) != NULL);
}

static void test_arguments(void)
{
    static char text[PAGE_SIZE + 1], *words[ARGUMENT_MAX + 1];

    make();
    memset(text, 'x', PAGE_SIZE);
    for (int i = 0; i <= ARGUMENT_MAX; i++)
        words[i] = "w";
    user_area_init(&area, 1, cpu_xfeatures(), cpu_xsize());
    CHECK(program_load(file, sizeof(file), ARGUMENT_MAX + 1, words, image, &area));
    words[3] = text;
    CHECK(program_load(file, sizeof(file), 4, words, image, &area));
}

int main(void)
{
    test_good();
    test_refused();
    test_arguments();
    return 0;
}
