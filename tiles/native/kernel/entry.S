/*
 * Between user code and the kernel of a tile. A core's kernel code always begins at the same stack address, because
 * nothing of the kernel's stack outlives a visit: C functions return to here before user code runs.
 *
 * From core_gate to core_gate_end and from core_enter to core_enter_end the thread's context in the User Area is
 * complete or still being written from the user's registers. A preempting signal that finds the core between core_enter
 * and its end abandons the entry (core_preempted): the context is intact and will be entered another time.
 */
#include "../shared/thread_context.h"

#define CORE_CONTEXT 0
#define CORE_KERNEL_RSP 8
#define CORE_EXIT_RSP 16
#define CORE_XMASK 24
#define CORE_RESCHED 28
#define USER_CS 0x33 /* Linux, 64-bit user code */
#define USER_SS 0x2b

        .text
        .globl  core_run, core_gate, core_gate_end, core_enter, core_enter_end, core_preempted, core_faulted
        .hidden core_current

/* void core_run(struct core *core): until core_next() has no more. r12 is the core wherever C functions are called. */
core_run:
        push    %rbx
        push    %rbp
        push    %r12
        push    %r13
        push    %r14
        push    %r15
        mov     %rsp, CORE_EXIT_RSP(%rdi)
        and     $-64, %rsp
        mov     %rsp, CORE_KERNEL_RSP(%rdi)
        mov     core_current@gottpoff(%rip), %rax
        mov     %rdi, %fs:(%rax)

/* rdi = core, rsp = its kernel stack */
core_preempted:
        mov     %rdi, %r12
        call    core_next
        test    %rax, %rax
        jz      leave
        mov     %r12, %rdi
        jmp     core_enter
leave:
        mov     CORE_EXIT_RSP(%r12), %rsp
        pop     %r15
        pop     %r14
        pop     %r13
        pop     %r12
        pop     %rbp
        pop     %rbx
        ret

/* rdi = core, rsp = its kernel stack: the program did something that it may not */
core_faulted:
        mov     %rdi, %r12
        call    core_fail
        mov     %r12, %rdi
        jmp     core_preempted

/* The user's `call`: number and words in rdi, rsi, rdx, rcx, r8, r9; a caller expects nothing of rax, r10, r11. */
core_gate:
        mov     core_current@gottpoff(%rip), %r11
        mov     %fs:(%r11), %r11
        mov     CORE_CONTEXT(%r11), %rax
        mov     %rbx, CONTEXT_RBX(%rax)
        mov     %rcx, CONTEXT_RCX(%rax)
        mov     %rdx, CONTEXT_RDX(%rax)
        mov     %rsi, CONTEXT_RSI(%rax)
        mov     %rdi, CONTEXT_RDI(%rax)
        mov     %rbp, CONTEXT_RBP(%rax)
        mov     %r8, CONTEXT_R8(%rax)
        mov     %r9, CONTEXT_R9(%rax)
        mov     %r12, CONTEXT_R12(%rax)
        mov     %r13, CONTEXT_R13(%rax)
        mov     %r14, CONTEXT_R14(%rax)
        mov     %r15, CONTEXT_R15(%rax)
        pop     %r10
        mov     %r10, CONTEXT_RIP(%rax)
        mov     %rsp, CONTEXT_RSP(%rax)
        pushfq
        popq    CONTEXT_RFLAGS(%rax)
        stmxcsr CONTEXT_MXCSR(%rax)
        fnstcw  CONTEXT_FCW(%rax)
        movw    $0, CONTEXT_FULL(%rax)
        mov     CORE_KERNEL_RSP(%r11), %rsp
        pushq   $RFLAGS_FIXED           /* a program's AC, TF or DF must not reach C code */
        popfq
        mov     %r11, %r12
        mov     %r11, %rdi
        call    core_call
core_gate_end:
        test    %rax, %rax
        jz      leave
        mov     %r12, %rdi

/* rdi = core, rax = context: its registers, then IRETQ, which loads rip, rflags and rsp at once. */
core_enter:
        mov     CORE_KERNEL_RSP(%rdi), %rsp
        cmpl    $0, CORE_RESCHED(%rdi)
        jne     core_preempted
        mov     %rax, %rbx
        pushq   $USER_SS
        pushq   CONTEXT_RSP(%rbx)
        pushq   CONTEXT_RFLAGS(%rbx)
        pushq   $USER_CS
        pushq   CONTEXT_RIP(%rbx)
        cmpw    $0, CONTEXT_FULL(%rbx)
        je      1f
        mov     CORE_XMASK(%rdi), %eax
        xor     %edx, %edx
        xrstor64 CONTEXT_XSTATE(%rbx)
        jmp     2f
1:      fninit                          /* whose numbers are left there is not known; a call returns to an empty stack */
        ldmxcsr CONTEXT_MXCSR(%rbx)
        fldcw   CONTEXT_FCW(%rbx)
2:      mov     CONTEXT_RAX(%rbx), %rax
        mov     CONTEXT_RCX(%rbx), %rcx
        mov     CONTEXT_RDX(%rbx), %rdx
        mov     CONTEXT_RSI(%rbx), %rsi
        mov     CONTEXT_RDI(%rbx), %rdi
        mov     CONTEXT_RBP(%rbx), %rbp
        mov     CONTEXT_R8(%rbx), %r8
        mov     CONTEXT_R9(%rbx), %r9
        mov     CONTEXT_R10(%rbx), %r10
        mov     CONTEXT_R11(%rbx), %r11
        mov     CONTEXT_R12(%rbx), %r12
        mov     CONTEXT_R13(%rbx), %r13
        mov     CONTEXT_R14(%rbx), %r14
        mov     CONTEXT_R15(%rbx), %r15
        mov     CONTEXT_RBX(%rbx), %rbx
        iretq
core_enter_end:

        .section .note.GNU-stack, "", @progbits
