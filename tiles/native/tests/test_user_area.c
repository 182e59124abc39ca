/* The User Area: queue, exit values, stacks, extents, checksum; and that whatever arrives broken is refused. */
#include "../shared/user_area.h"

#include <errno.h>
#include <string.h>

#include "../shared/cpu.h"
#include "../shared/crc32c.h"
#include "check.h"

#define ENTRY (USER_BASE + 0x100)

static struct user_area area, spoiled;
static uint32_t xfeatures, xsize; /* asked once: in a VM the question costs more than a check */

/* Three threads: a ready one, an interrupted one, which is ready, and one waiting for a message. */
static void make(void)
{
    user_area_init(&area, 7, xfeatures, xsize);
    area.text_end = 0x2000;
    area.rodata_end = 0x3000;
    area.end = 0x10000;
    area.epoch = 3;
    for (int i = 0; i < 3; i++)
        CHECK(user_area_add_thread(&area, ENTRY, 1, 2) == i);
    CHECK(user_area_take_ready(&area, 1) == 0);
    area.threads[0].context.full = 1;
    area.threads[0].context.xsize = area.xsize;
    user_area_make_ready(&area, 0);
    CHECK(user_area_take_ready(&area, 1) == 1);
    area.threads[1].state = THREAD_WAITING;
    area.threads[1].wait = WAIT_MAIL;
    area.threads[1].object = 4;
    user_area_seal(&area);
}

static const char *check(const struct user_area *what)
{
    return user_area_check(what, 7, xfeatures, xsize);
}

static void test_queue(void)
{
    make();
    CHECK(user_area_take_ready(&area, 1) == 2);
    CHECK(user_area_take_ready(&area, 1) == 0);
    CHECK(user_area_take_ready(&area, 1) == -1);
    user_area_make_ready(&area, 0);
    user_area_make_ready(&area, 2);
    area.threads[0].affinity = 1 << 5;
    CHECK(user_area_take_ready(&area, 1) == 2); /* 0 may not run there and stays first */
    CHECK(user_area_take_ready(&area, 1) == -1);
    CHECK(user_area_take_ready(&area, 5) == 0);
    CHECK(area.ready_first == -1 && area.ready_last == -1);
}

static void test_frozen(void)
{
    make();
    area.only = 1; /* the thread in slot 0 */
    user_area_seal(&area);
    CHECK(check(&area) == NULL);
    CHECK(user_area_take_ready(&area, 1) == 0 && user_area_take_ready(&area, 1) == -1);
    area.only = 0;
    CHECK(user_area_take_ready(&area, 1) == 2);
}

static void test_threads(void)
{
    int64_t value = 0;

    make();
    for (int i = 3; i < THREAD_MAX; i++)
        CHECK(user_area_add_thread(&area, ENTRY, 0, 0) == i);
    CHECK(user_area_add_thread(&area, ENTRY, 0, 0) == -EAGAIN);
    CHECK(user_area_find_thread(&area, 18) == 17 && user_area_find_thread(&area, 19) == -1);
    user_area_end_thread(&area, 1, -5); /* it waited, so it is in no queue */
    CHECK(!user_area_take_exit(&area, 0, &value));
    CHECK(user_area_take_exit(&area, 2, &value) && value == -5);
    CHECK(!user_area_take_exit(&area, 2, &value));
    CHECK(user_area_add_thread(&area, ENTRY, 0, 0) == 1 && area.threads[1].id == 19);
}

static void test_extents(void)
{
    struct extent extents[THREAD_MAX + 2], stack;

    make();
    CHECK(user_area_list_extents(&area, extents) == 5);
    CHECK(extents[0].offset == 0 && extents[0].size == area.end);
    CHECK(extents[1].offset == ARGUMENTS_OFFSET && extents[1].size == PAGE_SIZE);
    stack = user_area_stack(&area, 0);
    CHECK(stack.offset == USER_SIZE - PAGE_SIZE && stack.size == PAGE_SIZE);
    area.threads[0].context.rsp = USER_BASE + USER_SIZE - PAGE_SIZE - 16; /* its red zone is on the page below */
    CHECK(user_area_stack(&area, 0).size == 2 * PAGE_SIZE);
    area.threads[0].context.rsp = USER_BASE + USER_SIZE - 2 * PAGE_SIZE + 64;
    CHECK(user_area_stack(&area, 0).size == 3 * PAGE_SIZE);
    area.threads[0].context.rsp = USER_BASE + 0x8000; /* elsewhere: all of the stack */
    CHECK(user_area_stack(&area, 0).size == STACK_SIZE - PAGE_SIZE);
}

static void test_every_bit(void)
{
    size_t used = PAGE_SIZE * 4; /* the head and three threads */

    make();
    CHECK(check(&area) == NULL);
    spoiled = area;
    for (size_t bit = 0; bit < used * 8; bit++) {
        ((uint8_t *)&spoiled)[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK(check(&spoiled) != NULL);
        ((uint8_t *)&spoiled)[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    CHECK(check(&spoiled) == NULL);
}

/* Faults that a checksum does not find, because they were there before the seal. */
#define REFUSED(change)                  \
    do {                                 \
        make();                          \
        change;                          \
        user_area_seal(&area);               \
        CHECK(check(&area) != NULL);     \
    } while (0)

static void test_nonsense(void)
{
    struct context *context = &area.threads[0].context;
    uint64_t bad = 1;

    REFUSED(area.version++);
    REFUSED(area.process = 8);
    REFUSED(area.xsize += 8);
    REFUSED(area.end = USER_SIZE);
    REFUSED(area.text_end = area.end + PAGE_SIZE);
    REFUSED(area.rodata_end++);
    REFUSED(area.exit_next = EXIT_VALUES);
    REFUSED(area.only = 99);
    REFUSED(area.ready_first = 5);
    REFUSED(area.ready_first = -1);
    REFUSED(area.ready_first = -3);
    REFUSED(area.ready_last = 2 - area.ready_last);
    REFUSED(area.threads[2].next = 2);
    REFUSED(area.threads[0].next = 2); /* a cycle */
    REFUSED(area.threads[2].next = 1); /* it waits */
    REFUSED(area.threads[0].state = THREAD_RUNNING);
    REFUSED(area.threads[0].state = 77);
    REFUSED(area.threads[1].wait = WAIT_KINDS);
    REFUSED(area.threads[1].wait = WAIT_NOTHING);
    REFUSED(area.threads[1].object = PORT_MAX);
    REFUSED(area.threads[1].wait = WAIT_JOIN; area.threads[1].object = 99);
    REFUSED(area.threads[1].wait = WAIT_WORD; area.threads[1].object = 0x10000);
    REFUSED(area.threads[1].wait = WAIT_WORD; area.threads[1].object = 0x5001);
    REFUSED(area.threads[0].id = 0);
    REFUSED(area.threads[0].id = area.next_thread);
    REFUSED(context->rip = USER_BASE + area.text_end);
    REFUSED(context->rip = USER_BASE);
    REFUSED(context->rip = 0x401000);
    REFUSED(context->rsp = USER_BASE - 8);
    REFUSED(context->rsp = USER_BASE + USER_SIZE);
    REFUSED(context->rflags |= 0x3000); /* I/O privilege */
    REFUSED(context->rflags &= ~0x200ul);
    REFUSED(context->mxcsr |= 0x10000);
    REFUSED(context->full = 2);
    REFUSED(context->xsize -= 8);
    REFUSED(context->full = 0);
    REFUSED(memset(context->xstate + 512, 0xff, 8)); /* components that are not there */
    REFUSED(memcpy(context->xstate + 520, &bad, 8)); /* the compacted format */
    REFUSED(memcpy(context->xstate + 560, &bad, 8)); /* reserved, must be 0 */
    REFUSED(memset(context->xstate + 24, 0xff, 4));  /* MXCSR */
    make();
    CHECK(user_area_check(&area, 7, xfeatures ^ 4, xsize) != NULL);
}

/* A program may wait for any word that it can write. */
static void test_words(void)
{
    static const uint32_t words[] = {0x3000, 0xfffc, ARGUMENTS_OFFSET + 8, STACKS_OFFSET + PAGE_SIZE, USER_SIZE - 4};

    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        make();
        area.threads[1].wait = WAIT_WORD;
        area.threads[1].object = words[i];
        user_area_seal(&area);
        CHECK(check(&area) == NULL);
    }
}

static void test_checksum(void)
{
    static const char digits[] = "123456789";

    CHECK(crc32c(0, digits, 9) == 0xe3069283); /* RFC 3720's polynomial, the usual check value */
    CHECK(crc32c_plain(0, digits, 9) == 0xe3069283);
    CHECK(crc32c(crc32c(0, digits, 4), digits + 4, 5) == 0xe3069283);
}

int main(void)
{
    xfeatures = cpu_xfeatures();
    xsize = cpu_xsize();
    test_checksum();
    test_queue();
    test_frozen();
    test_threads();
    test_extents();
    test_nonsense();
    test_words();
    test_every_bit();
    return 0;
}
