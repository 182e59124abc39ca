/*
 * See inject.h. One thread of the process is stopped and made to run system calls:
 *
 *   PTRACE_SEIZE, PTRACE_INTERRUPT        it stops on its way out of the kernel, before a system call is restarted
 *   registers, signal mask                kept here; all signals blocked, seccomp suspended
 *   the calls                             `syscall` of the vdso; its text is not written to
 *   PTRACE_INTERRUPT                      the same kind of stop
 *   registers, signal mask                as they were: the thread continues its work, also an interrupted call
 *   PTRACE_DETACH
 *
 * The registers are other than the program's only between the two stops, about 0.1 ms. So all of this is done by a process
 * of its own, in its own session, that shares our memory and descriptors: it completes its work when we are killed. The
 * tracing process itself may be killed by SIGKILL just then (with its control group); the kernel detaches the thread then,
 * which runs on behind the `syscall` with a wrong result, or crashes. Before the first and after the last stop nothing can
 * happen.
 *
 * A thread in an uninterruptible sleep cannot be stopped, and is not asked to be: the others come first, and when all of
 * them sleep so, they are looked at until one does not, or the time for the whole process is over.
 */
#include "inject.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <wherry/interrupted_call.h>

#include "mappings.h"

#ifndef PTRACE_O_SUSPEND_SECCOMP
#define PTRACE_O_SUSPEND_SECCOMP (1 << 21)
#endif

enum {
    GET_SYSCALL_USER_DISPATCH = 0x4211, /* PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, Linux 6.4 */
    STOP_MS = 500,                      /* until a process of which no thread stops is given up */
    STOP_MOST_MS = 30000,               /* until a process whose thread waits for a processor is */
    LOOK_US = 20,
    LOOK_AGAIN_US = 1000,    /* at threads that are all in an uninterruptible sleep */
    CODE_64_BIT = 0x33,      /* the selector in %cs */
    STACK = 256 << 10,       /* bytes, for the process that traces */
    TEXT_MAX = 1 << 20,      /* bytes of a mapping in which an instruction is looked for */
};

struct injection {
    int pid, result;
    inject_act act;
    void *context;
    char *why;
    size_t size;
    int64_t until, most; /* as now_ms() counts */
};

struct stopped {
    int pid, tid;
    struct user_regs_struct registers;
    uint64_t mask;
    uint64_t instruction; /* the address of a `syscall` */
};

__attribute__((format(printf, 3, 4))) static int fail(struct injection *injection, int error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(injection->why, injection->size, format, arguments);
    va_end(arguments);
    return error;
}

static bool read_memory(int pid, uint64_t address, void *bytes, size_t count)
{
    struct iovec here = {bytes, count}, there = {(void *)address, count};

    return process_vm_readv(pid, &here, 1, &there, 1, 0) == (ssize_t)count;
}

static const uint8_t code[] = {0x0f, 0x05}; /* syscall */

static uint64_t find_in(int pid, const struct mapping *mapping)
{
    uint64_t size = mapping->end - mapping->start;
    size_t count = size < TEXT_MAX ? size : TEXT_MAX;
    uint8_t *bytes = malloc(count), *found = NULL;
    uint64_t address = 0;

    if (bytes && read_memory(pid, mapping->start, bytes, count))
        found = memmem(bytes, count, code, sizeof(code));
    if (found)
        address = mapping->start + (uint64_t)(found - bytes);
    free(bytes);
    return address;
}

/*
 * The `syscall` that brought the thread into the kernel, or any: from the highest address on, as the vdso is up there.
 * Only for a stopped thread: until then it may call exec.
 */
static uint64_t find_instruction(const struct stopped *thread)
{
    struct mappings mappings = {0};
    uint64_t address = 0;
    uint8_t last[sizeof(code)];

    if ((long)thread->registers.orig_rax >= 0 &&
        read_memory(thread->pid, thread->registers.rip - sizeof(last), last, sizeof(last)) && !memcmp(last, code, sizeof(code)))
        return thread->registers.rip - sizeof(last);
    if (!mappings_read(thread->pid, &mappings))
        for (size_t i = mappings.count; i-- && !address;)
            if (mappings.list[i].executable)
                address = find_in(thread->pid, &mappings.list[i]);
    mappings_free(&mappings);
    return address;
}

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The letter of its state (proc(5)); 0 when it has ended. */
static char state_of(int tid)
{
    char path[32], line[256], *state = NULL;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/stat", tid);
    if (!(file = fopen(path, "re")))
        return 0;
    if (fgets(line, sizeof(line), file))
        state = strrchr(line, ')');
    fclose(file);
    return state && state[1] == ' ' ? state[2] : 0;
}

/* False: the time is over. A thread stops when it has a processor, for which it may wait for long. */
static bool may_wait(struct injection *injection, int tid)
{
    int64_t now = now_ms();

    if (now <= injection->until)
        return true;
    if (now > injection->most || state_of(tid) != 'R')
        return false;
    injection->until = now + STOP_MS;
    return true;
}

/*
 * Waits for the stop that PTRACE_INTERRUPT brings about; without an injection, for ever. Signals that come first are
 * delivered; the stop comes after.
 */
static int wait_for_interrupt(int tid, struct injection *injection)
{
    for (;;) {
        struct timespec nap = {.tv_nsec = LOOK_US * 1000};
        int status, got = waitpid(tid, &status, __WALL | (injection ? WNOHANG : 0));

        if (got < 0)
            return -errno;
        if (!got && !may_wait(injection, tid))
            return -ETIMEDOUT;
        if (!got) {
            nanosleep(&nap, NULL);
            continue;
        }
        if (!WIFSTOPPED(status))
            return -ESRCH;
        if (status >> 16 == PTRACE_EVENT_STOP)
            return 0;
        ptrace(PTRACE_CONT, tid, 0, (long)WSTOPSIG(status));
    }
}

/* Runs up to the next entry into, or exit from, a system call. Only SIGSTOP can come between: it is passed on. */
static int run_to_call(int tid)
{
    for (long signal = 0;;) {
        int status;

        if (ptrace(PTRACE_SYSCALL, tid, 0, signal))
            return -errno;
        while (waitpid(tid, &status, __WALL) < 0)
            if (errno != EINTR)
                return -errno;
        if (!WIFSTOPPED(status))
            return -ESRCH;
        if (WSTOPSIG(status) == (SIGTRAP | 0x80))
            return 0;
        signal = status >> 16 ? 0 : WSTOPSIG(status);
    }
}

/* orig_rax = -1: no system call is under way, so the kernel does not restart one when the thread continues. */
int inject_call(const struct stopped *thread, long number, const uint64_t arguments[6], long *result)
{
    struct user_regs_struct registers = thread->registers;
    int error;

    registers.rip = thread->instruction;
    registers.orig_rax = (unsigned long long)-1;
    registers.rax = (unsigned long long)number;
    registers.rdi = arguments[0];
    registers.rsi = arguments[1];
    registers.rdx = arguments[2];
    registers.r10 = arguments[3];
    registers.r8 = arguments[4];
    registers.r9 = arguments[5];
    if (ptrace(PTRACE_SETREGS, thread->tid, 0, &registers))
        return -errno;
    if ((error = run_to_call(thread->tid)) || (error = run_to_call(thread->tid)))
        return error;
    if (ptrace(PTRACE_GETREGS, thread->tid, 0, &registers))
        return -errno;
    *result = (long)registers.rax;
    return 0;
}

bool inject_read(const struct stopped *thread, uint64_t address, void *bytes, size_t count)
{
    return read_memory(thread->pid, address, bytes, count);
}

/* The kernel continues calls that it can continue, when the thread does; the others are made again. */
static void restart(struct stopped *thread)
{
    struct user_regs_struct *registers = &thread->registers;
    long number = (long)registers->rax == -EINTR ? interrupted_call(thread->tid, registers) : -1;

    if (number < 0)
        return;
    registers->rax = (unsigned long long)number;
    registers->orig_rax = (unsigned long long)-1;
    registers->rip -= 2;
}

/*
 * A restartable sequence (rseq) in which the thread was stopped is to be aborted. The kernel does so only when the thread
 * continues where it was, which it does not here.
 */
static void abort_sequence(struct stopped *thread)
{
    struct __ptrace_rseq_configuration rseq;
    struct {
        uint32_t version, flags;
        uint64_t start, length, abort;
    } sequence;
    uint64_t address;

    if (ptrace(PTRACE_GET_RSEQ_CONFIGURATION, thread->tid, sizeof(rseq), &rseq) != sizeof(rseq) || !rseq.rseq_abi_pointer)
        return;
    if (!read_memory(thread->tid, rseq.rseq_abi_pointer + 8, &address, sizeof(address)) || !address)
        return;
    if (read_memory(thread->tid, address, &sequence, sizeof(sequence)) &&
        thread->registers.rip - sequence.start < sequence.length)
        thread->registers.rip = sequence.abort;
}

/* System calls that are dispatched to the program itself (Wine does) cannot be made on its behalf. */
static bool dispatches_calls(int tid)
{
    uint64_t configuration[4] = {0};

    return !ptrace((enum __ptrace_request)GET_SYSCALL_USER_DISPATCH, tid, sizeof(configuration), configuration) &&
           configuration[0];
}

/* The stop that has been reached is on the way out of the kernel. */
static int take_over(struct injection *injection, struct stopped *thread)
{
    uint64_t all = UINT64_MAX;

    if (ptrace(PTRACE_GETREGS, thread->tid, 0, &thread->registers) ||
        ptrace(PTRACE_GETSIGMASK, thread->tid, sizeof(thread->mask), &thread->mask))
        return fail(injection, -errno, "its registers cannot be read: %s", strerror(errno));
    if (thread->registers.cs != CODE_64_BIT || dispatches_calls(thread->tid))
        return fail(injection, -EOPNOTSUPP, "it is a 32-bit program, or handles its system calls itself");
    if (!(thread->instruction = find_instruction(thread)))
        return fail(injection, -ENOEXEC, "it has no system call instruction");
    restart(thread);
    abort_sequence(thread);
    /* without CAP_SYS_ADMIN seccomp stays, and userfaultfd(2) fails where a filter denies it */
    if (ptrace(PTRACE_SETOPTIONS, thread->tid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_SUSPEND_SECCOMP) &&
        ptrace(PTRACE_SETOPTIONS, thread->tid, 0, PTRACE_O_TRACESYSGOOD))
        return fail(injection, -errno, "its system calls cannot be traced: %s", strerror(errno));
    if (ptrace(PTRACE_SETSIGMASK, thread->tid, sizeof(all), &all))
        return fail(injection, -errno, "its signals cannot be blocked: %s", strerror(errno));
    return 0;
}

/* Nothing here gives up after a while: that would let the thread go with the registers of our call. */
static void give_back(const struct stopped *thread)
{
    ptrace(PTRACE_INTERRUPT, thread->tid, 0, 0);
    ptrace(PTRACE_CONT, thread->tid, 0, 0);
    if (!wait_for_interrupt(thread->tid, NULL))
        ptrace(PTRACE_SETREGS, thread->tid, 0, &thread->registers);
    ptrace(PTRACE_SETSIGMASK, thread->tid, sizeof(thread->mask), &thread->mask);
    ptrace(PTRACE_DETACH, thread->tid, 0, 0);
}

/* -EAGAIN or -EPERM: this thread cannot do it now, another one may. */
static int inject_into(struct injection *injection, int tid)
{
    struct stopped thread = {.pid = injection->pid, .tid = tid};
    char state = state_of(tid);
    int result;

    if (!state || state == 'Z' || state == 'X')
        return fail(injection, -ESRCH, "it has ended");
    if (state == 'D')
        return fail(injection, -EAGAIN, "it does not stop");
    if (ptrace(PTRACE_SEIZE, tid, 0, 0))
        return fail(injection, -errno, "it cannot be traced (is it being debugged?): %s",
                    strerror(errno));
    ptrace(PTRACE_INTERRUPT, tid, 0, 0);
    if ((result = wait_for_interrupt(tid, injection)))
        return fail(injection, result == -ETIMEDOUT ? -EAGAIN : -ESRCH, "it does not stop");
    if ((result = take_over(injection, &thread))) {
        ptrace(PTRACE_DETACH, tid, 0, 0);
        return result;
    }
    result = injection->act(injection->context, &thread, injection->why, injection->size);
    give_back(&thread);
    return result;
}

/* Whether another thread of the process may do better. Of such errors the first of these that occurred is reported. */
static int rank(int result)
{
    static const int errors[] = {-EPERM, -EAGAIN, -ESRCH};

    for (int i = 0; i < 3; i++)
        if (result == errors[i])
            return 3 - i;
    return 0;
}

/*
 * The main thread comes first. -EAGAIN: the threads that have not ended sleep, or the time is over before all were
 * looked at.
 */
static int inject_into_any(struct injection *injection)
{
    int result = fail(injection, -ESRCH, "it has ended"), last = result;
    char path[64];
    struct dirent *entry;
    DIR *list;

    snprintf(path, sizeof(path), "/proc/%d/task", injection->pid);
    if (!(list = opendir(path)))
        return -ESRCH;
    while (rank(last) && now_ms() <= injection->until && (entry = readdir(list))) {
        if (atoi(entry->d_name) <= 0)
            continue;
        last = inject_into(injection, atoi(entry->d_name));
        if (!rank(last) || rank(last) > rank(result))
            result = last;
    }
    closedir(list);
    return result == -ESRCH && now_ms() > injection->until ? -EAGAIN : result;
}

/*
 * A thread that did not stop in time is detached by the kernel when this process ends. Only the thread of ours that
 * waits for this might hold a lock of libc.
 */
static int run(void *context)
{
    struct injection *injection = context;
    struct timespec nap = {.tv_nsec = LOOK_AGAIN_US * 1000};

    setsid();
    injection->until = now_ms() + STOP_MS;
    injection->most = now_ms() + STOP_MOST_MS;
    while ((injection->result = inject_into_any(injection)) == -EAGAIN && now_ms() <= injection->until)
        nanosleep(&nap, NULL);
    if (injection->result == -EAGAIN)
        fail(injection, -EAGAIN, "none of its threads stops");
    return 0;
}

int inject(int pid, inject_act act, void *context, char *why, size_t size)
{
    static _Alignas(16) uint8_t stack[STACK];
    struct injection injection = {.pid = pid, .act = act, .context = context, .why = why, .size = size};
    sigset_t all, before;
    int tracer;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    tracer = clone(run, stack + STACK, CLONE_VM | CLONE_FILES | CLONE_VFORK | SIGCHLD, &injection);
    if (tracer < 0)
        injection.result = fail(&injection, -errno, "no process to trace it: %s", strerror(errno));
    else
        waitpid(tracer, NULL, 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return injection.result;
}
