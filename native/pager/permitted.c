/*
 * Finds the processes that have the permission for a feature of the processor's extended state (XSAVE).
 *
 *   wherry-pager permitted BIT PID ...
 *
 * BIT is the feature's number in XCR0; 18 is the data of AMX's tiles, which a program asks for by
 * arch_prctl(ARCH_REQ_XCOMP_PERM, 18). Only the process itself can read its permissions, so each is made to
 * (ARCH_GET_XCOMP_PERM, into a page of its own that is there for that moment; inject.h). A process that has ended is left
 * out. On standard output, for a process that has it:
 *
 *   permitted PID
 *
 * and for a process that cannot be asked:
 *
 *   unknown PID REASON
 */
#include "permitted.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "inject.h"

enum {
    WRONG_USAGE = 2,
    GET_XCOMP_PERM = 0x1022, /* ARCH_GET_XCOMP_PERM, asm/prctl.h since Linux 5.16 */
    PAGE = 4096,
};

static int describe_error(char *why, size_t size, const char *what, long error)
{
    snprintf(why, size, "%s: %s", what, strerror((int)-error));
    return error == -EAGAIN ? -ENOMEM : (int)error; /* EAGAIN would be tried again */
}

static int read_mask(void *context, const struct stopped *thread, char *why, size_t size)
{
    const uint64_t page[6] = {0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, UINT64_MAX, 0};
    long there, result = 0, ended = 0;
    uint64_t *mask = context;
    int error = inject_call(thread, SYS_mmap, page, &there);

    if (error || (there < 0 && there >= -PAGE))
        return describe_error(why, size, "it has no room for a page", error ? error : there);
    error = inject_call(thread, SYS_arch_prctl, (const uint64_t[6]){GET_XCOMP_PERM, (uint64_t)there}, &result);
    if (!error && !result && !inject_read(thread, (uint64_t)there, mask, sizeof(*mask)))
        error = -EFAULT;
    inject_call(thread, SYS_munmap, (const uint64_t[6]){(uint64_t)there, PAGE}, &ended);
    return error || result ? describe_error(why, size, "arch_prctl(2) fails inside it", error ? error : result) : 0;
}

static long number(const char *text, long most)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    return errno || end == text || *end || value < 0 || value > most ? -1 : value;
}

int permitted_run(int argc, char **argv)
{
    long bit = argc > 1 ? number(argv[1], 63) : -1;

    for (int i = 2; i < argc; i++)
        if (number(argv[i], INT_MAX) <= 0)
            bit = -1;
    if (bit < 0) {
        fputs("usage: wherry-pager permitted BIT PID ...\n", stderr);
        return WRONG_USAGE;
    }
    for (int i = 2; i < argc; i++) {
        char why[256] = "";
        uint64_t mask = 0;
        int error = inject((int)number(argv[i], INT_MAX), read_mask, &mask, why, sizeof(why));

        if (error && error != -ESRCH)
            printf("unknown %s %s\n", argv[i], why);
        else if (!error && mask >> bit & 1)
            printf("permitted %s\n", argv[i]);
    }
    return 0;
}
