#include <wherry/interrupted_call.h>

#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/uio.h>

/* Any signal that is about to be delivered to the thread. */
static bool has_signal(int tid)
{
    uint64_t pending = 0, shared = 0, blocked = 0;
    char path[64], line[256];
    FILE *status;

    snprintf(path, sizeof(path), "/proc/%d/status", tid);
    if (!(status = fopen(path, "re")))
        return true;
    while (fgets(line, sizeof(line), status)) {
        sscanf(line, "SigPnd: %" SCNx64, &pending);
        sscanf(line, "ShdPnd: %" SCNx64, &shared);
        sscanf(line, "SigBlk: %" SCNx64, &blocked);
    }
    fclose(status);
    return (pending | shared) & ~blocked;
}

/* Calls that the kernel does not restart: they end with EINTR when the thread is stopped, and have done nothing then. */
static bool is_never_restarted(long number)
{
    static const int numbers[] = {
        SYS_epoll_wait, SYS_epoll_pwait, SYS_rt_sigtimedwait, SYS_semop,   SYS_semtimedop, SYS_io_getevents, SYS_recvfrom,
        SYS_recvmsg,    SYS_sendto,      SYS_sendmsg,         SYS_accept,  SYS_accept4,    SYS_read,         SYS_write,
        SYS_readv,      SYS_writev,      SYS_recvmmsg,        441 /* epoll_pwait2 */,
    };

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (numbers[i] == number)
            return true;
    return false;
}

/*
 * The call that a thread was stopped in before and that continues as restart_syscall: `mov $NUMBER,%eax; syscall` is
 * how the C library makes one. -1: made in another way.
 */
static long begun_as(int tid, unsigned long long behind)
{
    struct {
        uint8_t move;
        uint32_t number;
        uint16_t call;
    } __attribute__((packed)) code;
    struct iovec here = {&code, sizeof(code)}, there = {(void *)(uintptr_t)(behind - sizeof(code)), sizeof(code)};

    if (process_vm_readv(tid, &here, 1, &there, 1, 0) != sizeof(code) || code.move != 0xb8 || code.call != 0x050f)
        return -1;
    return (long)code.number;
}

/* Whether the call made again differs from a continued one only in its time, which may be longer. */
static bool may_begin_again(long number, const struct user_regs_struct *registers)
{
    if (number == SYS_nanosleep) /* the time left was written over the requested time, or nowhere */
        return !registers->rsi || registers->rsi == registers->rdi;
    if (number == SYS_clock_nanosleep)
        return !registers->r10 || registers->r10 == registers->rdx;
    if (number == SYS_futex) /* others have a time from now, and their callers expect EINTR */
        return (registers->rsi & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
    return number == SYS_poll;
}

bool undo_restart(int tid, struct user_regs_struct *registers)
{
    if ((long)registers->rax != SYS_restart_syscall || begun_as(tid, registers->rip + 2) < 0)
        return false;
    registers->rip += 2;
    registers->orig_rax = SYS_restart_syscall;
    registers->rax = (unsigned long long)-WHERRY_ERESTART_RESTARTBLOCK;
    return true;
}

long interrupted_call(int tid, const struct user_regs_struct *registers)
{
    long result = (long)registers->rax, number = (long)registers->orig_rax;
    bool again;

    if (number == SYS_restart_syscall)
        number = begun_as(tid, registers->rip);
    if (result == -WHERRY_ERESTART_RESTARTBLOCK)
        again = may_begin_again(number, registers);
    else
        again = result == -EINTR && is_never_restarted(number);
    return again && !has_signal(tid) ? number : -1;
}
