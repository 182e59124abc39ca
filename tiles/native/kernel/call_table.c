/*
 * The kernel calls; calls about messages are in message_calls.c. A call that must wait puts the thread's instruction
 * pointer back to its call instruction, notes in the User Area the object that it waits for, and is executed again from
 * its words when there is reason to; so a waiting thread is data, and the tile that has the process finishes the call.
 *
 * A call changes something only in its last step, after which it is complete: it is never half done.
 *
 * The master executes calls to grow, move and end; the calling core executes, under the tile's lock, all calls about
 * threads, words, messages, portals and syncs. In the paper creating a thread, sending, receiving and signalling are
 * the master's as well: two wake-ups, for work that takes less than one.
 */
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

#include "call_table.h"
#include "message_calls.h"
#include "scheduler.h"

static int64_t do_self(const struct call *call)
{
    return call->thread->id;
}

static int64_t do_create(const struct call *call)
{
    uint64_t entry = call->words[0] - USER_BASE;
    int slot;

    if (entry < sizeof(struct image_head) || entry >= call->tile->area->text_end)
        return -EFAULT;
    slot = user_area_add_thread(call->tile->area, (uint32_t)call->words[0], call->words[1], call->words[2]);
    if (slot < 0)
        return slot;
    sched_wake_cores(call->tile);
    return call->tile->area->threads[slot].id;
}

/* Each core that runs another thread acknowledges by giving it up; then the call is made again, and is alone. */
static int64_t do_freeze(const struct call *call)
{
    struct tile *tile = call->tile;
    struct user_area *area = tile->area;

    if (area->only && area->only != call->thread->id)
        return call_park(call, WAIT_FREEZE, 0);
    area->only = call->thread->id;
    if (tile->running == 1)
        return 0;
    for (uint32_t index = 1; index < tile->shared->core_count; index++)
        if (tile_core(tile, index)->thread >= 0 && (int)index != call->core)
            pthread_kill(tile_core(tile, index)->pthread, PREEMPT_SIGNAL);
    return call_park(call, WAIT_FREEZE, 0);
}

static void unfreeze(struct tile *tile)
{
    tile->area->only = 0;
    sched_retry(tile, WAIT_FREEZE, -1, THREAD_MAX);
    sched_wake_cores(tile);
}

static int64_t do_unfreeze(const struct call *call)
{
    if (call->tile->area->only != call->thread->id)
        return -EPERM;
    unfreeze(call->tile);
    return 0;
}

static int64_t do_thread_exit(const struct call *call)
{
    uint32_t id = call->thread->id;

    user_area_end_thread(call->tile->area, call->slot, (int64_t)call->words[0]);
    sched_retry(call->tile, WAIT_JOIN, id, THREAD_MAX);
    if (call->tile->area->only == id)
        unfreeze(call->tile);
    if (!call->tile->area->used) {
        call->tile->ending = true;
        shared_ring(call->tile->shared, call->tile->index);
    }
    return CALL_GONE;
}

static int64_t do_join(const struct call *call)
{
    uint32_t id = (uint32_t)call->words[0];
    void *to = call_writable(call, call->words[1], sizeof(int64_t));
    int64_t value;

    if (call->words[1] && !to)
        return -EFAULT;
    if (id == call->thread->id)
        return -EDEADLK;
    if (user_area_find_thread(call->tile->area, id) >= 0)
        return call_park(call, WAIT_JOIN, id);
    if (!user_area_take_exit(call->tile->area, id, &value))
        return -ESRCH;
    if (to)
        memcpy(to, &value, sizeof(value));
    return 0;
}

static int64_t do_yield(const struct call *call)
{
    if (call->tile->area->ready_first >= 0)
        tile_core(call->tile, (uint32_t)call->core)->resched = 1;
    return 0;
}

static int64_t do_affinity(const struct call *call)
{
    uint32_t mask = (uint32_t)call->words[0], cores = (1u << call->tile->shared->core_count) - 2;

    if (!(mask & cores))
        return -EINVAL;
    call->thread->affinity = mask;
    if (!(mask >> call->core & 1))
        tile_core(call->tile, (uint32_t)call->core)->resched = 1;
    return 0;
}

static int64_t do_word_wait(const struct call *call)
{
    uint64_t address = call->words[0];
    int *word = address % 4 ? NULL : call_writable(call, address, sizeof(*word));

    if (!word)
        return -EFAULT;
    if (__atomic_load_n(word, __ATOMIC_SEQ_CST) != (int)call->words[1])
        return 0;
    return call_park(call, WAIT_WORD, (uint32_t)(address - USER_BASE));
}

static int64_t do_word_wake(const struct call *call)
{
    return sched_retry(call->tile, WAIT_WORD, (int64_t)(call->words[0] - USER_BASE), (int)call->words[1]);
}

static int64_t do_clock(const struct call *call)
{
    (void)call;
    return shared_now();
}

static int64_t do_grow(const struct call *call)
{
    struct user_area *area = call->tile->area;
    uint32_t at = area->end;

    if (call->words[0] > (ARGUMENTS_OFFSET - at) / PAGE_SIZE)
        return -ENOMEM;
    memset(call->tile->image + at, 0, call->words[0] * PAGE_SIZE);
    area->end += (uint32_t)call->words[0] * PAGE_SIZE;
    return USER_BASE + at;
}

/* The process that has this rank in the caller's program. */
static int64_t find_member(const struct call *call, uint64_t rank)
{
    struct shared_memory *shared = call->tile->shared;
    const struct location *mine = &shared->locations[call->tile->process];
    uint32_t process;

    if (rank >= mine->ranks)
        return -EINVAL;
    process = mine->members[rank];
    return shared_place(shared, process).state == PLACE_FREE ? -EAGAIN : (int64_t)process;
}

static int64_t do_info(const struct call *call)
{
    const struct location *location = &call->tile->shared->locations[call->tile->process];

    switch (call->words[0]) {
    case INFO_PROCESS:
        return call->tile->process;
    case INFO_TILE:
        return call->tile->index;
    case INFO_CORES:
        return call->tile->shared->core_count;
    case INFO_CORE:
        return call->core;
    case INFO_THREADS:
        return __builtin_popcount(call->tile->area->used);
    case INFO_RANK:
        return location->rank;
    case INFO_RANKS:
        return location->ranks;
    case INFO_MEMBER:
        return find_member(call, call->words[1]);
    default:
        return -EINVAL;
    }
}

static int64_t do_move(const struct call *call)
{
    struct tile_record *record = &call->tile->shared->tiles[call->tile->index];
    uint64_t tile = call->words[0], mode = call->words[1];
    uint32_t none = 0;

    if (tile >= call->tile->shared->tile_count || tile == call->tile->index || mode >= MODE_COUNT)
        return -EINVAL;
    if (!atomic_compare_exchange_strong(&record->wish, &none, (uint32_t)(1 + (tile | mode << 8))))
        return -EBUSY;
    eventfd_write(call->tile->event_fd, 1);
    return call_park(call, WAIT_MOVE, 0);
}

static int64_t do_exit(const struct call *call)
{
    call->tile->ending = true;
    call->tile->status = (int)call->words[0] & 0xff;
    return call_park(call, WAIT_MOVE, 0);
}

static const struct {
    call_execute_one *execute;
    bool masters;
} table[CALL_COUNT] = {
    [CALL_SELF] = {do_self, false},
    [CALL_CREATE] = {do_create, false},
    [CALL_THREAD_EXIT] = {do_thread_exit, false},
    [CALL_JOIN] = {do_join, false},
    [CALL_YIELD] = {do_yield, false},
    [CALL_AFFINITY] = {do_affinity, false},
    [CALL_WORD_WAIT] = {do_word_wait, false},
    [CALL_WORD_WAKE] = {do_word_wake, false},
    [CALL_CLOCK] = {do_clock, false},
    [CALL_GROW] = {do_grow, true},
    [CALL_MAIL_SEND] = {call_mail_send, false},
    [CALL_MAIL_RECEIVE] = {call_mail_receive, false},
    [CALL_INFO] = {do_info, false},
    [CALL_MOVE] = {do_move, true},
    [CALL_EXIT] = {do_exit, true},
    [CALL_SYNC_SIGNAL] = {call_sync_signal, false},
    [CALL_SYNC_WAIT] = {call_sync_wait, false},
    [CALL_ALLOW] = {call_allow, false},
    [CALL_START] = {call_start, false},
    [CALL_FINISH] = {call_finish, false},
    [CALL_WAIT] = {call_wait, false},
    [CALL_FREEZE] = {do_freeze, false},
    [CALL_UNFREEZE] = {do_unfreeze, false},
};

bool call_is_for_master(uint64_t number)
{
    return number < CALL_COUNT && table[number].masters;
}

bool call_execute(struct tile *tile, int slot, int core)
{
    struct context *context = &tile->area->threads[slot].context;
    struct call call = {
        .tile = tile,
        .thread = &tile->area->threads[slot],
        .slot = slot,
        .core = core,
        .words = {context->rsi, context->rdx, context->rcx, context->r8, context->r9},
    };
    int64_t result = context->rdi < CALL_COUNT ? table[context->rdi].execute(&call) : -ENOSYS;

    if (result == CALL_PARKED || result == CALL_GONE)
        return false;
    context->rax = (uint64_t)result;
    return true;
}
