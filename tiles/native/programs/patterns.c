/*
 * patterns ROUNDS [step]: fills every register class with a pattern of the thread, waits without a kernel call, and
 * compares. Four threads with four patterns; whatever happens in between (preemption, moves), each must find its own.
 * With `step` it is one thread with the trap flag set: between any two instructions it may be moved (see
 * fault_injection.h).
 */
#include "tile.h"

#define THREADS 4

struct registers {
    uint64_t general[15];           /* all but rsp */
    uint8_t vectors[32 * 64];       /* the first 16 bytes, 32, or all of each, by `level` */
    uint64_t masks[8];
    uint32_t mxcsr;
    uint16_t fcw;
    uint8_t x87[8][16];
};

static long rounds;
static int step;
static int level; /* 0 SSE, 1 AVX, 2 AVX-512 */
static struct registers wanted[THREADS], found[THREADS];

/* programs/patterns.S would hide how the two belong together, so the assembly is here. */
void hold_patterns(const struct registers *wanted, struct registers *found, long spins, long level);
__asm__(
    ".globl hold_patterns\n"
    "hold_patterns:\n"
    "push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
    "push %rsi\n"                       /* where to store */
    "push %rcx\n"                       /* level */
    "push %rdx\n"                       /* counts down in memory: every register holds a pattern */
    /* the x87 stack is empty in every function's beginning, or the next lines overflow it */
    "mov %rdi, %rax\n"
    ".set i, 0\n"
    ".rept 8\n fldt 2238+16*i(%rax)\n .set i, i+1\n .endr\n"
    "ldmxcsr 2232(%rax)\n"
    "fldcw 2236(%rax)\n"
    "cmp $1, %rcx; jb 1f; ja 2f\n"
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n vmovdqu 120+64*\\n(%rax), %ymm\\n\n .endr\n"
    "jmp 3f\n"
    "1:\n .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n movdqu 120+64*\\n(%rax), %xmm\\n\n .endr\n"
    "jmp 3f\n"
    "2:\n .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
    " vmovdqu64 120+64*\\n(%rax), %zmm\\n\n .endr\n"
    " .irp n,0,1,2,3,4,5,6,7\n kmovw 2168+8*\\n(%rax), %k\\n\n .endr\n"
    "3:\n"
    "mov 8(%rax), %rbx; mov 16(%rax), %rcx; mov 24(%rax), %rdx; mov 32(%rax), %rsi; mov 40(%rax), %rdi\n"
    "mov 48(%rax), %rbp; mov 56(%rax), %r8; mov 64(%rax), %r9; mov 72(%rax), %r10; mov 80(%rax), %r11\n"
    "mov 88(%rax), %r12; mov 96(%rax), %r13; mov 104(%rax), %r14; mov 112(%rax), %r15; mov (%rax), %rax\n"
    "std\n"                             /* a flag too: it must still be set below */
    "4: decq (%rsp); jnz 4b\n"
    "pushfq\n"
    "push %rax\n"
    "mov 32(%rsp), %rax\n"
    "mov %rbx, 8(%rax); mov %rcx, 16(%rax); mov %rdx, 24(%rax); mov %rsi, 32(%rax); mov %rdi, 40(%rax)\n"
    "mov %rbp, 48(%rax); mov %r8, 56(%rax); mov %r9, 64(%rax); mov %r10, 72(%rax); mov %r11, 80(%rax)\n"
    "mov %r12, 88(%rax); mov %r13, 96(%rax); mov %r14, 104(%rax); mov %r15, 112(%rax)\n"
    "pop %rbx; mov %rbx, (%rax)\n"
    "pop %rbx; cld\n"
    "stmxcsr 2232(%rax)\n"
    "fnstcw 2236(%rax)\n"
    "mov 8(%rsp), %rcx\n"
    "cmp $1, %rcx; jb 1f; ja 2f\n"
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n vmovdqu %ymm\\n, 120+64*\\n(%rax)\n .endr\n"
    "jmp 3f\n"
    "1:\n .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n movdqu %xmm\\n, 120+64*\\n(%rax)\n .endr\n"
    "jmp 3f\n"
    "2:\n .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
    " vmovdqu64 %zmm\\n, 120+64*\\n(%rax)\n .endr\n"
    " .irp n,0,1,2,3,4,5,6,7\n kmovw %k\\n, 2168+8*\\n(%rax)\n .endr\n"
    "3:\n"
    ".set i, 7\n"
    ".rept 8\n fstpt 2238+16*i(%rax)\n .set i, i-1\n .endr\n"
    "fninit\n"
    "test $0x400, %ebx; jnz 5f\n"
    "movq $0, (%rax)\n"                 /* the direction flag was lost: make the comparison fail */
    "5: add $24, %rsp\n"
    "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx\n"
    "ret\n");

void trap_flag_on(void);
void trap_flag_off(void);
__asm__("trap_flag_on: pushfq; orq $0x100, (%rsp); popfq; ret\n"
        "trap_flag_off: pushfq; andq $~0x100, (%rsp); popfq; ret\n");

static int supported(void)
{
    uint32_t a, b, c, d, xcr;

    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(1), "c"(0));
    if (!(c & 1 << 27 && c & 1 << 28))
        return 0;
    __asm__("xgetbv" : "=a"(xcr), "=d"(d) : "c"(0));
    if ((xcr & 6) != 6)
        return 0;
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
    return b & 1 << 16 && (xcr & 0xe6) == 0xe6 ? 2 : 1;
}

static void fill(struct registers *registers, uint64_t seed)
{
    int size = level == 2 ? 64 : level == 1 ? 32 : 16;

    for (int i = 0; i < 15; i++)
        registers->general[i] = seed = seed * 6364136223846793005u + 1442695040888963407u;
    for (int n = 0; n < (level == 2 ? 32 : 16); n++)
        for (int i = 0; i < size; i++)
            registers->vectors[64 * n + i] = (uint8_t)((seed = seed * 6364136223846793005u + 1) >> 56);
    for (int i = 0; level == 2 && i < 8; i++)
        registers->masks[i] = (seed = seed * 6364136223846793005u + 1) >> 48;
    registers->mxcsr = 0x1f80 | (uint32_t)(seed >> 62) << 13;       /* rounding mode */
    registers->fcw = (uint16_t)(0x37f | (seed >> 60 & 3) << 10);
    for (int n = 0; n < 8; n++) {
        for (int i = 0; i < 8; i++)
            registers->x87[n][i] = (uint8_t)((seed = seed * 6364136223846793005u + 1) >> 56);
        registers->x87[n][7] |= 0x80; /* a normal number */
        registers->x87[n][8] = (uint8_t)(n + 1);
        registers->x87[n][9] = 0x40;
    }
}

static long check(void *argument)
{
    long self = (long)argument;

    for (long i = 0; i < rounds; i++) {
        fill(&wanted[self], (uint64_t)(i * THREADS + self));
        memset(&found[self], 0, sizeof(found[self]));
        if (step)
            trap_flag_on();
        hold_patterns(&wanted[self], &found[self], step ? 4 : 200000, level);
        if (step)
            trap_flag_off();
        if (memcmp(&wanted[self], &found[self], sizeof(wanted[self])) != 0)
            return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    int threads[THREADS];
    long bad = 0, value;

    _Static_assert(offsetof(struct registers, masks) == 2168 && offsetof(struct registers, mxcsr) == 2232, "assembly");
    _Static_assert(offsetof(struct registers, fcw) == 2236 && offsetof(struct registers, x87) == 2238, "assembly");
    level = supported();
    rounds = argc > 1 ? number_of(argv[1]) : 10;
    step = argc > 2;
    for (long i = 0; i < THREADS; i++)
        threads[i] = step ? 0 : thread_create(check, (void *)i);
    bad = step ? check(0) : 0;
    for (int i = 0; !step && i < THREADS; i++) {
        thread_join(threads[i], &value);
        bad += value != 0;
    }
    say(bad ? "failed: %ld threads lost their registers\n" : "ok %ld\n", bad ? bad : rounds);
    return bad != 0;
}
