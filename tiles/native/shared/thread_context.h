/*
 * A user thread that does not run: everything of the CPU that it will find again.
 *
 * A thread that was interrupted is *full*: all registers, and the extended state as XSAVE writes it (standard format).
 * A thread that made a kernel call has no more than a caller may expect: the extended state is the two control words.
 * The offsets are known to entry.S too.
 */
#ifndef WHERRY_MANYCORE_SHARED_THREAD_CONTEXT_H
#define WHERRY_MANYCORE_SHARED_THREAD_CONTEXT_H

#define CONTEXT_RAX 0
#define CONTEXT_RBX 8
#define CONTEXT_RCX 16
#define CONTEXT_RDX 24
#define CONTEXT_RSI 32
#define CONTEXT_RDI 40
#define CONTEXT_RBP 48
#define CONTEXT_R8 56
#define CONTEXT_R9 64
#define CONTEXT_R10 72
#define CONTEXT_R11 80
#define CONTEXT_R12 88
#define CONTEXT_R13 96
#define CONTEXT_R14 104
#define CONTEXT_R15 112
#define CONTEXT_RSP 120
#define CONTEXT_RIP 128
#define CONTEXT_RFLAGS 136
#define CONTEXT_MXCSR 144
#define CONTEXT_FCW 148
#define CONTEXT_FULL 150
#define CONTEXT_XSTATE 192

#define XSTATE_MAX 2816 /* bytes: x87, SSE, AVX, AVX-512; AMX is never asked for */
#define MXCSR_DEFAULT 0x1f80
#define FCW_DEFAULT 0x37f
/* The flags a program may have: CF PF AF ZF SF TF DF OF, RF AC ID; IF and bit 1 are always set. */
#define RFLAGS_USER 0x250dd5
#define RFLAGS_FIXED 0x202

#ifndef __ASSEMBLER__
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

struct context {
    uint64_t rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15;
    uint64_t rsp, rip, rflags;
    uint32_t mxcsr;
    uint16_t fcw, full;
    uint32_t xsize; /* bytes of xstate that hold something; 0 when not full */
    uint32_t unused[9];
    uint8_t xstate[XSTATE_MAX];
};

static_assert(offsetof(struct context, r15) == CONTEXT_R15, "entry.S");
static_assert(offsetof(struct context, rflags) == CONTEXT_RFLAGS, "entry.S");
static_assert(offsetof(struct context, full) == CONTEXT_FULL, "entry.S");
static_assert(offsetof(struct context, xstate) == CONTEXT_XSTATE, "entry.S, and XSAVE wants 64 bytes of alignment");
#endif

#endif
