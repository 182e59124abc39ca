/*
 * See program_loader.h. Only output of our own linker script is taken: a static executable whose segments lie in the
 * user region, in the order text, rodata, data, each with the rights of its part, and the image head in front.
 */
#include "program_loader.h"

#include <elf.h>
#include <stdbool.h>
#include <string.h>

#define USER_END (USER_BASE + USER_SIZE)
#define IMAGE_LIMIT (USER_BASE + ARGUMENTS_OFFSET)

static const char *check_header(const Elf64_Ehdr *header, size_t size)
{
    if (size < sizeof(*header) || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
        return "it is not an ELF file";
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB ||
        header->e_machine != EM_X86_64)
        return "it is not for x86-64";
    if (header->e_type != ET_EXEC)
        return "it is not a static program at a fixed address; link it with the tile's linker script";
    if (header->e_phentsize != sizeof(Elf64_Phdr) || header->e_phoff > size || header->e_phoff % 8 ||
        header->e_phnum > (size - header->e_phoff) / sizeof(Elf64_Phdr))
        return "its program headers lie outside the file";
    return NULL;
}

static const char *check_segment(const Elf64_Phdr *segment, size_t size)
{
    if (segment->p_type == PT_TLS)
        return "it has thread-local storage; a tile's threads have none, use thread_self()";
    if (segment->p_type == PT_INTERP || segment->p_type == PT_DYNAMIC)
        return "it is linked dynamically; link it with the tile's linker script";
    if (segment->p_type != PT_LOAD || segment->p_memsz == 0)
        return NULL;
    if (segment->p_vaddr < USER_BASE || segment->p_vaddr >= USER_END)
        return "it is linked for a wrong address; link it with the tile's linker script";
    if (segment->p_memsz > IMAGE_LIMIT - segment->p_vaddr || segment->p_vaddr >= IMAGE_LIMIT)
        return "it is too large: image and arguments have 1468 KiB";
    if (segment->p_filesz > segment->p_memsz || segment->p_offset > size ||
        segment->p_filesz > size - segment->p_offset)
        return "a segment lies outside the file";
    if ((segment->p_flags & (PF_W | PF_X)) == (PF_W | PF_X))
        return "a segment is writable and executable";
    return NULL;
}

static const char *check_head(const struct image_head *head)
{
    if (head->magic != TILE_MAGIC)
        return "it has no image head; link it with the tile's library and linker script";
    if (head->abi != TILE_ABI)
        return "it was built for another version of the kernel; build it again";
    if (head->text_end % PAGE_SIZE || head->rodata_end % PAGE_SIZE || head->end % PAGE_SIZE ||
        head->text_end <= USER_BASE || head->text_end > head->rodata_end || head->rodata_end > head->end ||
        head->end > IMAGE_LIMIT || head->entry < USER_BASE + sizeof(*head) || head->entry >= head->text_end)
        return "its image head has impossible bounds; build it again";
    return NULL;
}

/* Whether a tile will give the pages the same rights that the segment asks for. */
static bool is_at_its_part(const Elf64_Phdr *segment, const struct image_head *head)
{
    uint64_t end = segment->p_vaddr + segment->p_memsz;

    if (segment->p_memsz == 0)
        return true;
    if (segment->p_flags & PF_X)
        return end <= head->text_end;
    if (segment->p_flags & PF_W)
        return segment->p_vaddr >= head->rodata_end && end <= head->end;
    return end <= head->rodata_end;
}

static const char *put_arguments(int argc, char *const *argv, uint8_t *image)
{
    uint8_t *page = image + ARGUMENTS_OFFSET;
    size_t at = (ARGUMENT_MAX + 1) * sizeof(uint64_t);

    if (argc > ARGUMENT_MAX)
        return "it has too many arguments: at most 15";
    for (int i = 0; i < argc; i++) {
        size_t length = strlen(argv[i]) + 1;
        uint64_t address = USER_BASE + ARGUMENTS_OFFSET + at;

        if (length > PAGE_SIZE - at)
            return "its arguments are too long: about 3900 bytes together";
        memcpy(page + i * sizeof(address), &address, sizeof(address));
        memcpy(page + at, argv[i], length);
        at += length;
    }
    return NULL;
}

const char *program_load(const uint8_t *file, size_t size, int argc, char *const *argv, uint8_t *image,
                         struct user_area *area)
{
    struct image_head head;
    Elf64_Ehdr header = {0};
    Elf64_Phdr segment;
    const char *wrong;

    memcpy(&header, file, size < sizeof(header) ? size : sizeof(header));
    wrong = check_header(&header, size);
    memset(image, 0, USER_SIZE);
    for (int i = 0; !wrong && i < header.e_phnum; i++) {
        memcpy(&segment, file + header.e_phoff + (size_t)i * sizeof(segment), sizeof(segment));
        wrong = check_segment(&segment, size);
        if (!wrong && segment.p_type == PT_LOAD && segment.p_memsz)
            memcpy(image + (segment.p_vaddr - USER_BASE), file + segment.p_offset, segment.p_filesz);
    }
    if (wrong)
        return wrong;
    memcpy(&head, image, sizeof(head));
    wrong = check_head(&head);
    for (int i = 0; !wrong && i < header.e_phnum; i++) {
        memcpy(&segment, file + header.e_phoff + (size_t)i * sizeof(segment), sizeof(segment));
        if (segment.p_type == PT_LOAD && !is_at_its_part(&segment, &head))
            wrong = "a segment is not where its rights apply; link it with the tile's linker script";
    }
    if (!wrong)
        wrong = put_arguments(argc, argv, image);
    if (wrong)
        return wrong;
    area->text_end = (uint32_t)(head.text_end - USER_BASE);
    area->rodata_end = (uint32_t)(head.rodata_end - USER_BASE);
    area->end = (uint32_t)(head.end - USER_BASE);
    user_area_add_thread(area, (uint32_t)head.entry, (uint64_t)argc, USER_BASE + ARGUMENTS_OFFSET);
    return NULL;
}
