/* See cpu.h. Intel SDM volume 1, chapter 13. */
#include "cpu.h"

#include <cpuid.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define COMPONENTS 0xe7u /* x87 0, SSE 1, AVX 2, opmask 5, upper ZMM 6, ZMM16-31 7 */
#define LEGACY_AND_HEADER 576u
#define TURN_NS 100000
#define PRECEDENCE_NICE (-15)

uint32_t cpu_xfeatures(void)
{
    uint32_t a, b, c, d;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return a & COMPONENTS;
}

uint32_t cpu_xsize(void)
{
    uint32_t features = cpu_xfeatures(), end = LEGACY_AND_HEADER, size, offset, c, d;

    for (uint32_t component = 2; component < 8; component++) {
        if (!(features >> component & 1))
            continue;
        __cpuid_count(0xd, component, size, offset, c, d);
        if (offset + size > end)
            end = offset + size;
    }
    return end;
}

int cpu_count(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

void cpu_ask_precedence(void)
{
    cpu_ask_short_turns();
    setpriority(PRIO_PROCESS, 0, PRECEDENCE_NICE);
}

struct attributes { /* struct sched_attr of linux/sched/types.h, its first version */
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

bool cpu_ask_short_turns(void)
{
    struct attributes attributes = {.size = sizeof(attributes)};

    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) < 0 || attributes.policy != 0)
        return false;
    attributes.runtime = TURN_NS;
    if (syscall(SYS_sched_setattr, 0, &attributes, 0) < 0 ||
        syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) < 0)
        return false;
    return attributes.runtime == TURN_NS;
}
