/*
 * A slave core: the choice of its next thread, and how it is taken away from a thread.
 *
 * Invariant: a signal copies a thread's registers only when it finds the core in the user region, and abandons an entry
 * only between core_enter and its end; anywhere else in the kernel it merely sets `resched`, which core_enter reads.
 * So a thread's context has one writer, and no request to let go is missed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <ucontext.h>
#include <unistd.h>

#include "../shared/cpu.h"
#include "call_table.h"
#include "core.h"
#include "scheduler.h"

#define SIGNAL_STACK_EXTRA 65536
#define WRITE_FAULT 2 /* of a page fault's error code: Intel SDM volume 3, 4.7 */
#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#define PR_SYS_DISPATCH_ON 1
#endif

_Thread_local struct core *core_current __attribute__((visibility("hidden")));
static struct dirty_tracking *fault_tracking; /* the tile's: a write to a watched page may come from any thread */

static bool within(uint64_t rip, const char *from, const char *to)
{
    return rip >= (uint64_t)from && rip < (uint64_t)to;
}

static bool is_user(uint64_t rip)
{
    return rip >= USER_BASE && rip < USER_BASE + USER_SIZE;
}

static void save_registers(struct context *context, const greg_t *regs)
{
    context->rax = (uint64_t)regs[REG_RAX];
    context->rbx = (uint64_t)regs[REG_RBX];
    context->rcx = (uint64_t)regs[REG_RCX];
    context->rdx = (uint64_t)regs[REG_RDX];
    context->rsi = (uint64_t)regs[REG_RSI];
    context->rdi = (uint64_t)regs[REG_RDI];
    context->rbp = (uint64_t)regs[REG_RBP];
    context->r8 = (uint64_t)regs[REG_R8];
    context->r9 = (uint64_t)regs[REG_R9];
    context->r10 = (uint64_t)regs[REG_R10];
    context->r11 = (uint64_t)regs[REG_R11];
    context->r12 = (uint64_t)regs[REG_R12];
    context->r13 = (uint64_t)regs[REG_R13];
    context->r14 = (uint64_t)regs[REG_R14];
    context->r15 = (uint64_t)regs[REG_R15];
    context->rsp = (uint64_t)regs[REG_RSP];
    context->rip = (uint64_t)regs[REG_RIP];
    context->rflags = ((uint64_t)regs[REG_EFL] & RFLAGS_USER) | RFLAGS_FIXED;
}

/* The kernel wrote the extended state in XSAVE's standard format into the signal frame. */
static void save_extended(struct context *context, const void *frame, const struct shared_memory *shared)
{
    uint64_t present;

    memcpy(context->xstate, frame, shared->xsize);
    memcpy(&present, context->xstate + 512, sizeof(present));
    present &= shared->xfeatures;
    memcpy(context->xstate + 512, &present, sizeof(present));
    memset(context->xstate + 464, 0, 48); /* the legacy region's bytes for software, with Linux's data */
    context->mxcsr = MXCSR_DEFAULT;
    context->fcw = FCW_DEFAULT;
    context->xsize = shared->xsize;
    context->full = 1;
}

/* Leaves the signal handler to `where` on the core's kernel stack. */
static void go_to(ucontext_t *at, struct core *core, const char *where)
{
    at->uc_mcontext.gregs[REG_RIP] = (greg_t)where;
    at->uc_mcontext.gregs[REG_RSP] = (greg_t)core->kernel_rsp;
    at->uc_mcontext.gregs[REG_RDI] = (greg_t)core;
    at->uc_mcontext.gregs[REG_EFL] = RFLAGS_FIXED;
}

/* Alignment checks of a program that has set AC must not hit our own code. */
static void clear_alignment_check(void)
{
    __asm__ volatile("sub $128, %%rsp; pushfq; andl $~0x40000, (%%rsp); popfq; add $128, %%rsp" ::: "cc", "memory");
}

static void take_core(ucontext_t *at, struct core *core)
{
    uint64_t rip = (uint64_t)at->uc_mcontext.gregs[REG_RIP];

    if (is_user(rip)) {
        save_registers(core->context, at->uc_mcontext.gregs);
        save_extended(core->context, at->uc_mcontext.fpregs, core->tile->shared);
        go_to(at, core, core_preempted);
    } else if (within(rip, core_enter, core_enter_end)) {
        go_to(at, core, core_preempted);
    } else {
        core->resched = 1;
    }
}

static void on_preempt(int number, siginfo_t *what, void *context)
{
    int error = errno;

    (void)number, (void)what;
    clear_alignment_check();
    if (core_current)
        take_core(context, core_current);
    errno = error;
}

static const char *name_fault(int number)
{
    switch (number) {
    case SIGSYS:
        return "made a system call; programs of a tile have kernel calls only";
    case SIGFPE:
        return "divided by zero";
    case SIGILL:
        return "executed an invalid instruction";
    case SIGTRAP:
        return "hit a breakpoint";
    default:
        return "used memory that it does not have";
    }
}

/* A fault of the program ends the program; one of the kernel ends the tile, as any crash. */
static void on_fault(int number, siginfo_t *what, void *context)
{
    ucontext_t *at = context;
    struct core *core = core_current;
    uint64_t rip = (uint64_t)at->uc_mcontext.gregs[REG_RIP];

    clear_alignment_check();
    if (number == SIGSEGV && at->uc_mcontext.gregs[REG_ERR] & WRITE_FAULT && fault_tracking &&
        dirty_tracking_fault(fault_tracking, (uint64_t)what->si_addr))
        return;
    if (core && number == SIGTRAP && what->si_code == TRAP_TRACE) {
        if (is_user(rip)) {
            core->stepped = true;
            take_core(at, core);
        } else {
            at->uc_mcontext.gregs[REG_EFL] &= ~0x100; /* the program's TF ends at its kernel call */
        }
        return;
    }
    if (!core || !(is_user(rip) || within(rip, core_gate, core_gate_end) || within(rip, core_enter, core_enter_end))) {
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    snprintf(core->fault, sizeof(core->fault), "thread %u %s (at %#lx)", core->tile->area->threads[core->thread].id,
             name_fault(number), (unsigned long)rip);
    go_to(at, core, core_faulted);
}

int core_install_handlers(struct tile *tile)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    struct sigaction action = {.sa_sigaction = on_preempt, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};

    fault_tracking = &tile->dirty_tracking;
    sigfillset(&action.sa_mask);
    if (sigaction(PREEMPT_SIGNAL, &action, NULL) < 0)
        return -errno;
    action.sa_sigaction = on_fault;
    for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++)
        if (sigaction(faults[i], &action, NULL) < 0)
            return -errno;
    return 0;
}

int core_forbid_system_calls(void)
{
    const unsigned long above = USER_BASE + USER_SIZE;

    return prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, above, (1ul << 47) - above, 0) < 0 ? -errno : 0;
}

static void *run(void *argument)
{
    struct core *core = argument;
    stack_t stack = {.ss_sp = core->signal_stack, .ss_size = getauxval(AT_MINSIGSTKSZ) + SIGNAL_STACK_EXTRA};

    if (sigaltstack(&stack, NULL) < 0 || core_forbid_system_calls() < 0) {
        perror("wherry-tile: this kernel cannot keep programs from system calls (Linux 5.11 or later)");
        _exit(1);
    }
    cpu_ask_short_turns();
    core_run(core);
    stack.ss_flags = SS_DISABLE;
    sigaltstack(&stack, NULL);
    return NULL;
}

int core_start(struct core *core)
{
    core->thread = -1;
    core->xmask = core->tile->shared->xfeatures;
    core->signal_stack = malloc(getauxval(AT_MINSIGSTKSZ) + SIGNAL_STACK_EXTRA);
    if (!core->signal_stack)
        return -ENOMEM;
    pthread_cond_init(&core->wake, NULL);
    return -pthread_create(&core->pthread, NULL, run, core);
}

/* Lock held. The thread that ran here does not any more; its context is complete. */
static void let_go(struct core *core)
{
    struct tile *tile = core->tile;

    core->thread = -1;
    if (--tile->running == 0) {
        tile->poll_wanted = tile->poll_wanted || tile->freezing_for_move;
        if (tile->area->only) /* the thread that froze the others may have waited for this one */
            sched_retry(tile, WAIT_FREEZE, -1, THREAD_MAX);
        pthread_cond_signal(&tile->quiet);
    }
}

static void note_resumed(struct tile *tile, int slot)
{
    struct move *move = tile->resumed_move;
    bool first;

    if (!(tile->resuming >> slot & 1))
        return;
    first = !atomic_load(&move->first);
    tile->resuming &= ~(1u << slot);
    if (first)
        atomic_store(&move->first, shared_now());
    if (tile->resuming)
        return;
    atomic_store(&move->all, shared_now());
    tile->resumed_move = NULL;
    eventfd_write(tile->event_fd, 1);
}

/* Lock held, a thread is ready for this core. */
static struct context *begin(struct core *core, int slot)
{
    struct tile *tile = core->tile;

    tile->area->threads[slot].state = THREAD_RUNNING;
    tile->running++;
    core->thread = slot;
    core->context = &tile->area->threads[slot].context;
    if (tile->resuming)
        note_resumed(tile, slot);
    return core->context;
}

/* Lock held. The process continues when it has been moved, or when that is refused. */
static void ask_for_step(struct tile *tile)
{
    uint32_t to = (tile->index + 1) % tile->shared->tile_count;

    if (tile->step_mode < 0)
        return;
    tile->stepping = true;
    atomic_store(&tile->shared->tiles[tile->index].wish, 1 + (to | (uint32_t)tile->step_mode << 8));
    eventfd_write(tile->event_fd, 1);
}

struct context *core_next(struct core *core)
{
    struct tile *tile = core->tile;
    struct context *context = NULL;
    int slot;

    pthread_mutex_lock(&tile->lock);
    core->resched = 0;
    if (core->thread >= 0) {
        slot = core->thread;
        user_area_make_ready(tile->area, slot);
        let_go(core);
        if (!(tile->area->threads[slot].affinity >> core->index & 1))
            sched_wake_cores(tile); /* it is for another core, which may be asleep */
        if (core->stepped)
            ask_for_step(tile);
    }
    core->stepped = false;
    while (!tile->stopping && !context) {
        if (tile->poll_wanted) {
            tile->poll_wanted = false;
            tile->polling_core = core->index;
            pthread_mutex_unlock(&tile->lock);
            tile->poll_move(tile);
            pthread_mutex_lock(&tile->lock);
            tile->polling_core = 0;
            continue;
        }
        slot = tile->area && !tile->frozen && !tile->stepping ? user_area_take_ready(tile->area, core->index) : -1;
        if (slot >= 0) {
            context = begin(core, slot);
            break;
        }
        core->idle = true;
        pthread_cond_wait(&core->wake, &tile->lock);
        core->idle = false;
    }
    pthread_mutex_unlock(&tile->lock);
    return context;
}

/* The seven bytes before the return address, or the program has found a way of its own to the gate. */
static bool is_gate_call(const struct tile *tile, const struct context *context)
{
    static const uint8_t call[GATE_CALL_SIZE] = {
        0xff, 0x14, 0x25, GATE_ADDRESS & 0xff, GATE_ADDRESS >> 8 & 0xff, GATE_ADDRESS >> 16 & 0xff, GATE_ADDRESS >> 24,
    };
    uint64_t offset = context->rip - USER_BASE;

    return offset >= sizeof(struct image_head) + sizeof(call) && offset < tile->area->text_end &&
           memcmp(tile->image + offset - sizeof(call), call, sizeof(call)) == 0;
}

struct context *core_call(struct core *core)
{
    struct tile *tile = core->tile;
    int slot = core->thread;
    bool goes_on;

    core->context->xsize = 0;
    core->context->rflags = (core->context->rflags & RFLAGS_USER) | RFLAGS_FIXED;
    if (!is_gate_call(tile, core->context)) {
        snprintf(core->fault, sizeof(core->fault), "thread %u called the kernel without kernel_call()",
                 tile->area->threads[slot].id);
        core_fail(core);
        return core_next(core);
    }
    pthread_mutex_lock(&tile->lock);
    if (call_is_for_master(core->context->rdi)) {
        tile->area->threads[slot].state = THREAD_CALLING;
        let_go(core);
        shared_ring(tile->shared, tile->index);
        goes_on = false;
    } else {
        goes_on = call_execute(tile, slot, core->index);
        if (!goes_on)
            let_go(core);
    }
    pthread_mutex_unlock(&tile->lock);
    return goes_on ? core->context : core_next(core);
}

/* The thread is put aside where it is; the master ends the process. */
void core_fail(struct core *core)
{
    struct tile *tile = core->tile;

    pthread_mutex_lock(&tile->lock);
    tile->area->threads[core->thread].state = THREAD_WAITING;
    tile->area->threads[core->thread].wait = WAIT_MOVE;
    let_go(core);
    if (!tile->ending) {
        tile->ending = true;
        tile->status = 128;
        snprintf(tile->why, sizeof(tile->why), "%s", core->fault);
    }
    shared_ring(tile->shared, tile->index);
    pthread_mutex_unlock(&tile->lock);
}
