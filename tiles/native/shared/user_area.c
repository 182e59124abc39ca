/* See user_area.h. No system call and no lock in here: the caller holds the tile's. */
#include "user_area.h"

#include <errno.h>
#include <string.h>

#include "crc32c.h"

#define XSAVE_HEADER 512     /* offset of XSTATE_BV, then XCOMP_BV, then 48 bytes that must be 0 */
#define FXSAVE_MXCSR 24      /* offset of MXCSR in the legacy region */
#define MXCSR_VALID 0xffffu  /* reserved bits make XRSTOR and LDMXCSR fault */

void user_area_init(struct user_area *area, uint32_t process, uint32_t xfeatures, uint32_t xsize)
{
    memset(area, 0, sizeof(*area));
    area->magic = USER_AREA_MAGIC;
    area->version = USER_AREA_VERSION;
    area->size = sizeof(*area);
    area->process = process;
    area->xfeatures = xfeatures;
    area->xsize = xsize;
    area->next_thread = 1;
    area->ready_first = area->ready_last = -1;
}

static uint32_t stack_top(int slot)
{
    return USER_SIZE - (uint32_t)slot * STACK_SIZE;
}

int user_area_add_thread(struct user_area *area, uint32_t entry, uint64_t rdi, uint64_t rsi)
{
    uint32_t unused = ~area->used & ((1u << THREAD_MAX) - 1);
    struct thread *thread;
    int slot;

    if (!unused)
        return -EAGAIN;
    slot = __builtin_ctz(unused);
    thread = &area->threads[slot];
    memset(thread, 0, THREAD_SIZE);
    thread->id = area->next_thread++;
    thread->affinity = ~1u;
    thread->context.rip = entry;
    thread->context.rsp = USER_BASE + stack_top(slot) - 8; /* as if called: 8 below a multiple of 16 */
    thread->context.rdi = rdi;
    thread->context.rsi = rsi;
    thread->context.rflags = RFLAGS_FIXED;
    thread->context.mxcsr = MXCSR_DEFAULT;
    thread->context.fcw = FCW_DEFAULT;
    area->used |= 1u << slot;
    user_area_make_ready(area, slot);
    return slot;
}

void user_area_end_thread(struct user_area *area, int slot, int64_t value)
{
    area->exits[area->exit_next].thread = area->threads[slot].id;
    area->exits[area->exit_next].value = value;
    area->exit_next = (uint16_t)((area->exit_next + 1) % EXIT_VALUES);
    area->threads[slot].state = THREAD_FREE;
    area->used &= ~(1u << slot);
}

bool user_area_take_exit(struct user_area *area, uint32_t thread, int64_t *value)
{
    for (int i = 0; thread && i < EXIT_VALUES; i++)
        if (area->exits[i].thread == thread) {
            *value = area->exits[i].value;
            area->exits[i].thread = 0;
            return true;
        }
    return false;
}

int user_area_find_thread(const struct user_area *area, uint32_t thread)
{
    for (int slot = 0; slot < THREAD_MAX; slot++)
        if (area->used >> slot & 1 && area->threads[slot].id == thread)
            return slot;
    return -1;
}

void user_area_make_ready(struct user_area *area, int slot)
{
    struct thread *thread = &area->threads[slot];

    thread->state = THREAD_READY;
    thread->wait = WAIT_NOTHING;
    thread->next = -1;
    if (area->ready_last < 0)
        area->ready_first = (int8_t)slot;
    else
        area->threads[area->ready_last].next = (int8_t)slot;
    area->ready_last = (int8_t)slot;
}

bool user_area_may_run(const struct user_area *area, int slot)
{
    return !area->only || area->threads[slot].id == area->only;
}

int user_area_take_ready(struct user_area *area, int core)
{
    int before = -1;

    for (int slot = area->ready_first; slot >= 0; before = slot, slot = area->threads[slot].next) {
        struct thread *thread = &area->threads[slot];

        if (!(thread->affinity >> core & 1) || !user_area_may_run(area, slot))
            continue;
        if (before < 0)
            area->ready_first = thread->next;
        else
            area->threads[before].next = thread->next;
        if (area->ready_last == slot)
            area->ready_last = (int8_t)before;
        thread->next = -1;
        return slot;
    }
    return -1;
}

struct extent user_area_stack(const struct user_area *area, int slot)
{
    uint64_t low = area->threads[slot].context.rsp - USER_BASE;
    uint32_t top = stack_top(slot), bottom = top - STACK_SIZE + PAGE_SIZE;

    low = low > 128 ? low - 128 : 0; /* the red zone: a leaf function uses it without moving rsp */
    if (low < bottom || low >= top)
        low = bottom; /* the program runs on a stack of its own making; its first one may still be in use */
    low &= ~(uint64_t)(PAGE_SIZE - 1);
    return (struct extent){(uint32_t)low, top - (uint32_t)low};
}

int user_area_list_extents(const struct user_area *area, struct extent extents[THREAD_MAX + 2])
{
    int count = 0;

    extents[count++] = (struct extent){0, area->end};
    extents[count++] = (struct extent){ARGUMENTS_OFFSET, PAGE_SIZE};
    for (int slot = THREAD_MAX - 1; slot >= 0; slot--)
        if (area->used >> slot & 1)
            extents[count++] = user_area_stack(area, slot);
    return count;
}

uint32_t user_area_checksum(const struct user_area *area)
{
    static const uint32_t zero;
    const size_t at = offsetof(struct user_area, checksum), after = at + sizeof(zero);
    uint32_t sum = crc32c(0, area, at);

    sum = crc32c(sum, &zero, sizeof(zero));
    sum = crc32c(sum, area->head + after, sizeof(area->head) - after);
    for (int slot = 0; slot < THREAD_MAX; slot++)
        if (area->used >> slot & 1)
            sum = crc32c(sum, &area->threads[slot], sizeof(area->threads[slot]));
    return sum;
}

void user_area_seal(struct user_area *area)
{
    area->checksum = user_area_checksum(area);
}

static const char *check_xstate(const struct user_area *area, const struct context *context)
{
    uint64_t present, compact, reserved[6];
    uint32_t mxcsr;

    if (!context->full)
        return context->xsize ? "a thread without extended state has a size for it" : NULL;
    if (context->full != 1 || context->xsize != area->xsize)
        return "a thread's extended state is of another size";
    memcpy(&present, context->xstate + XSAVE_HEADER, sizeof(present));
    memcpy(&compact, context->xstate + XSAVE_HEADER + 8, sizeof(compact));
    memcpy(reserved, context->xstate + XSAVE_HEADER + 16, sizeof(reserved));
    memcpy(&mxcsr, context->xstate + FXSAVE_MXCSR, sizeof(mxcsr));
    if (present & ~(uint64_t)area->xfeatures || compact || mxcsr & ~MXCSR_VALID)
        return "a thread's extended state is not valid";
    for (int i = 0; i < 6; i++)
        if (reserved[i])
            return "a thread's extended state is not valid";
    return NULL;
}

static bool is_word(const struct user_area *area, uint32_t offset)
{
    return offset % 4 == 0 && offset <= USER_SIZE - 4 && (offset >= ARGUMENTS_OFFSET || offset < area->end);
}

static bool is_wait(const struct user_area *area, const struct thread *thread)
{
    switch (thread->wait) {
    case WAIT_WORD:
        return is_word(area, thread->object);
    case WAIT_JOIN:
        return user_area_find_thread(area, thread->object) >= 0;
    case WAIT_MAIL:
        return thread->object < PORT_MAX;
    case WAIT_SEND:
        return thread->object >> 8 < PROCESS_MAX && (thread->object & 0xff) < PORT_MAX;
    case WAIT_SYNC:
        return thread->object < SYNC_MAX;
    case WAIT_MOVE:
    case WAIT_FREEZE:
    case WAIT_OPERATION: /* any set */
        return true;
    default:
        return false;
    }
}

static const char *check_thread(const struct user_area *area, const struct thread *thread)
{
    const struct context *context = &thread->context;
    uint64_t rip = context->rip - USER_BASE, rsp = context->rsp - USER_BASE;

    if (!thread->id || thread->id >= area->next_thread)
        return "a thread has an impossible number";
    if (thread->state != THREAD_READY && thread->state != THREAD_WAITING && thread->state != THREAD_CALLING)
        return "a thread is in no state that can be moved";
    if ((thread->state == THREAD_WAITING) != (thread->wait != WAIT_NOTHING) || (thread->wait && !is_wait(area, thread)))
        return "a thread waits for something impossible";
    if (thread->next < -1 || thread->next >= THREAD_MAX)
        return "a thread's link leads nowhere";
    if (rip < sizeof(struct image_head) || rip >= area->text_end)
        return "a thread would run outside the program's text";
    if (thread->state == THREAD_CALLING && rip < sizeof(struct image_head) + GATE_CALL_SIZE)
        return "a thread calls the kernel from nowhere";
    if (rsp >= USER_SIZE)
        return "a thread's stack is outside the user region";
    if ((context->rflags & ~(uint64_t)RFLAGS_USER) != RFLAGS_FIXED || context->mxcsr & ~MXCSR_VALID)
        return "a thread's flags are not those of a program";
    return check_xstate(area, context);
}

static const char *check_queue(const struct user_area *area)
{
    uint32_t seen = 0, ready = 0;
    int last = -1;

    for (int slot = 0; slot < THREAD_MAX; slot++)
        if (area->used >> slot & 1 && area->threads[slot].state == THREAD_READY)
            ready |= 1u << slot;
    if (area->ready_last < -1 || area->ready_last >= THREAD_MAX)
        return "the ready queue leads nowhere";
    for (int slot = area->ready_first; slot != -1; last = slot, slot = area->threads[slot].next) {
        if (slot < 0 || slot >= THREAD_MAX || !(ready >> slot & 1) || seen >> slot & 1)
            return "the ready queue leads nowhere";
        seen |= 1u << slot;
    }
    return seen == ready && last == area->ready_last ? NULL : "the ready queue lacks a thread";
}

const char *user_area_check(const struct user_area *area, uint32_t process, uint32_t xfeatures, uint32_t xsize)
{
    const char *wrong;

    if (area->magic != USER_AREA_MAGIC || area->version != USER_AREA_VERSION || area->size != sizeof(*area))
        return "this is no User Area of this build";
    if (area->used & ~((1u << THREAD_MAX) - 1))
        return "more threads than there can be";
    if (area->checksum != user_area_checksum(area))
        return "the checksum is wrong";
    if (area->process != process)
        return "it belongs to another process";
    if (area->xfeatures != xfeatures || area->xsize != xsize)
        return "its extended state is of another CPU";
    if (area->text_end > area->rodata_end || area->rodata_end > area->end || area->end > ARGUMENTS_OFFSET ||
        area->text_end % PAGE_SIZE || area->rodata_end % PAGE_SIZE || area->end % PAGE_SIZE)
        return "its image has impossible bounds";
    if (area->only && user_area_find_thread(area, area->only) < 0)
        return "its threads are frozen by none of them";
    if (area->exit_next >= EXIT_VALUES)
        return "its exit values are out of order";
    for (int slot = 0; slot < THREAD_MAX; slot++) {
        if (!(area->used >> slot & 1))
            continue;
        wrong = check_thread(area, &area->threads[slot]);
        if (wrong)
            return wrong;
    }
    return check_queue(area);
}
