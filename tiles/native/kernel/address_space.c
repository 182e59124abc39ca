/* See address_space.h. */
#include "address_space.h"

#include <errno.h>
#include <sys/mman.h>

#define USER ((uint8_t *)(uintptr_t)USER_BASE)

/* Text is never writable here and data never executable; the page below each stack cannot be touched. */
static int protect(const struct user_area *area)
{
    if (mprotect(USER, area->text_end, PROT_READ | PROT_EXEC) < 0)
        return -errno;
    if (area->rodata_end > area->text_end &&
        mprotect(USER + area->text_end, area->rodata_end - area->text_end, PROT_READ) < 0)
        return -errno;
    for (int slot = 0; slot < THREAD_MAX; slot++)
        if (mprotect(USER + USER_SIZE - (slot + 1) * STACK_SIZE, PAGE_SIZE, PROT_NONE) < 0)
            return -errno;
    return 0;
}

int address_space_map(struct tile *tile, uint32_t slot, const struct user_area *area)
{
    int error;

    if (area->text_end == 0 || area->text_end > area->rodata_end || area->rodata_end > USER_SIZE)
        return -EBADMSG;
    if (mmap(USER, USER_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, SHARED_MEMORY_FD,
             (off_t)shared_image_offset(slot)) == MAP_FAILED)
        return -errno;
    error = protect(area);
    /* Page faults now do not add to the downtime. */
    madvise(USER, USER_SIZE, MADV_POPULATE_READ);
    madvise(shared_image(tile->shared, slot), USER_SIZE, MADV_POPULATE_WRITE);
    madvise(USER + area->rodata_end, ARGUMENTS_OFFSET - area->rodata_end, MADV_POPULATE_WRITE);
    for (int stack = 0; stack < THREAD_MAX; stack++)
        madvise(USER + USER_SIZE - (stack + 1) * STACK_SIZE + PAGE_SIZE, STACK_SIZE - PAGE_SIZE, MADV_POPULATE_WRITE);
    madvise(shared_area(tile->shared, slot), sizeof(struct user_area), MADV_POPULATE_WRITE);
    if (error < 0)
        address_space_unmap();
    return error;
}

void address_space_unmap(void)
{
    munmap(USER, USER_SIZE);
}
