/* See kernel_call.h. */
#include "kernel_call.h"

#include "scheduler.h"

int64_t call_park(const struct call *call, enum wait_kind kind, uint32_t object)
{
    call->thread->state = THREAD_WAITING;
    call->thread->wait = kind;
    call->thread->object = object;
    call->thread->context.rip -= GATE_CALL_SIZE;
    return CALL_PARKED;
}

/* The program's memory from `from` on as the kernel sees it, or NULL when it has not `size` bytes there. */
static void *user_memory(const struct call *call, uint64_t address, uint64_t size, uint32_t from)
{
    uint64_t offset = address - USER_BASE, limit = call->tile->area->end;

    if (offset >= ARGUMENTS_OFFSET)
        limit = USER_SIZE;
    if (offset < from || offset > limit || size > limit - offset)
        return NULL;
    return call->tile->image + offset;
}

const void *call_readable(const struct call *call, uint64_t address, uint64_t size)
{
    return user_memory(call, address, size, 0);
}

void *call_writable(const struct call *call, uint64_t address, uint64_t size)
{
    return user_memory(call, address, size, call->tile->area->rodata_end);
}

void call_complete(struct tile *tile, int slot, int64_t result)
{
    struct thread *thread = &tile->area->threads[slot];

    if (thread->state == THREAD_WAITING)
        thread->context.rip += GATE_CALL_SIZE;
    thread->context.rax = (uint64_t)result;
    user_area_make_ready(tile->area, slot);
    sched_wake_cores(tile);
}
