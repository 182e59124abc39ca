/* wild WHAT: does forbidden things, in ways that a look at its code does not show; it never gets to its end. */
#include "tile.h"

/* The bytes of the immediate, one after the opcode, are those of `syscall; ret`. */
__asm__("hidden_call: movl $0x90c3050f, %ecx\n"
        "ret\n");
void hidden_call(void);

static volatile int zero;
static int zero_of_rank;
static volatile unsigned long nowhere = 16;

static void (*volatile gate)(void);

int main(int argc, char **argv)
{
    char what = argc > 1 ? argv[1][0] : 's';

    gate = *(void (**)(void))GATE_ADDRESS;
    if (what == 's')
        ((void (*)(void))((char *)hidden_call + 1))();
    else if (what == 'n')
        *(volatile int *)nowhere = 1;
    else if (what == 't')
        *(volatile int *)(USER_BASE + 64) = 1; /* its own text */
    else if (what == 'd')
        zero = 100 / zero;
    else if (what == 'o')
        say("%d\n", main(argc, argv) + 1); /* its stack's guard page */
    else if (what == 'g')
        gate(); /* the gate, but not by the call instruction of the library */
    else if (what == 'r') /* the last rank faults, the others wait for it */
        say("%d\n", info(INFO_RANK) == 2 ? 100 / zero : mail_receive(1, &zero_of_rank, sizeof(int), NULL));
    else if (what == 'p') /* a bad pointer is an error, not the end */
        return (int)kernel_call(CALL_MAIL_SEND, 0l, 0l, 0x500000l, 8l) == -14 ? 3 : 4;
    say("not stopped\n");
    return 0;
}
