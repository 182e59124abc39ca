/* Attributes of processes and threads. */
#include "objects.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static volatile sig_atomic_t seen, value;
static sigset_t set;

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    seen = seen + 1, value = value * 10 + info->si_value.sival_int;
}

static const char *make_pending(void)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};

    sigemptyset(&set), sigaddset(&set, SIGRTMIN + 4), sigaddset(&set, SIGUSR2);
    NEED(!sigaction(SIGRTMIN + 4, &action, NULL) && !sigaction(SIGUSR2, &action, NULL));
    NEED(!sigprocmask(SIG_BLOCK, &set, NULL));
    for (int i = 1; i < 4; i++)
        NEED(!sigqueue(getpid(), SIGRTMIN + 4, (union sigval){.sival_int = i}));
    NEED(!syscall(SYS_tgkill, getpid(), gettid(), SIGUSR2));
    return OK;
}
static const char *check_pending(void)
{
    sigset_t now;

    NEED(!sigprocmask(SIG_BLOCK, NULL, &now) && sigismember(&now, SIGUSR2) && !seen);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    return seen == 4 ? OK : wrong("%d signals, values %d", seen, value);
}

static const char *make_scheduling(void)
{
    struct sched_param none = {0};

    NEED(!sched_setscheduler(0, SCHED_BATCH, &none) && !setpriority(PRIO_PROCESS, 0, 7));
    return OK;
}
static const char *check_scheduling(void)
{
    NEED(sched_getscheduler(0) == SCHED_BATCH && getpriority(PRIO_PROCESS, 0) == 7);
    return OK;
}

static int last; /* a CPU of this process's affinity mask */
static const char *make_affinity(void)
{
    cpu_set_t cpus;

    NEED(!sched_getaffinity(0, sizeof cpus, &cpus));
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        last = CPU_ISSET(cpu, &cpus) ? cpu : last;
    CPU_ZERO(&cpus);
    CPU_SET(last, &cpus);
    NEED(!sched_setaffinity(0, sizeof cpus, &cpus));
    return OK;
}
static const char *check_affinity(void)
{
    cpu_set_t cpus;

    NEED(!sched_getaffinity(0, sizeof cpus, &cpus) && CPU_COUNT(&cpus) == 1 && CPU_ISSET(last, &cpus));
    return OK;
}

#define BEST_EFFORT_6 ((2 << 13) | 6)
static const char *make_ionice(void) { NEED(!syscall(SYS_ioprio_set, 1, 0, BEST_EFFORT_6)); return OK; }
static const char *check_ionice(void) { NEED(syscall(SYS_ioprio_get, 1, 0) == BEST_EFFORT_6); return OK; }

static const char *make_slack(void) { NEED(!prctl(PR_SET_TIMERSLACK, 123456)); return OK; }
static const char *check_slack(void) { NEED(prctl(PR_GET_TIMERSLACK) == 123456); return OK; }

static const char *make_limits(void)
{
    struct rlimit files = {200, 300}, core = {0, 0};

    NEED(!setrlimit(RLIMIT_NOFILE, &files) && !setrlimit(RLIMIT_CORE, &core));
    umask(027);
    NEED(!mkdir("/tmp/a-cwd", 0777) && !chdir("/tmp/a-cwd"));
    return OK;
}
static const char *check_limits(void)
{
    struct rlimit files, core;
    char directory[64];

    NEED(!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur == 200 && files.rlim_max == 300);
    NEED(!getrlimit(RLIMIT_CORE, &core) && core.rlim_max == 0 && umask(0) == 027);
    NEED(getcwd(directory, sizeof directory) && !strcmp(directory, "/tmp/a-cwd"));
    return OK;
}

static const char *make_prctl(void)
{
    int filter;

    NEED(!prctl(PR_SET_PDEATHSIG, SIGURG) && !prctl(PR_SET_NAME, "a-name") && !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    NEED(!prctl(PR_SET_DUMPABLE, 0));
    NEED((filter = open("/proc/self/coredump_filter", O_WRONLY)) >= 0 && write(filter, "0x7f", 4) == 4 && !close(filter));
    return OK;
}
static const char *check_prctl(void)
{
    char bits[16] = "";
    int deadly = 0, filter;
    char name[16];

    NEED(!prctl(PR_GET_PDEATHSIG, &deadly) && deadly == SIGURG);
    NEED(!prctl(PR_GET_NAME, name) && !strcmp(name, "a-name") && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
    NEED(prctl(PR_GET_DUMPABLE) == 0);
    NEED((filter = open("/proc/self/coredump_filter", O_RDONLY)) >= 0 && read(filter, bits, sizeof bits - 1) > 0);
    NEED(!close(filter) && strtol(bits, NULL, 16) == 0x7f);
    return OK;
}
static const char *make_subreaper(void) { NEED(!prctl(PR_SET_CHILD_SUBREAPER, 1)); return OK; }
static const char *check_subreaper(void)
{
    int is = 0;

    NEED(!prctl(PR_GET_CHILD_SUBREAPER, &is) && is == 1);
    return OK;
}

static stack_t stack;
static const char *make_stack(void)
{
    stack.ss_size = 1 << 16, stack.ss_sp = malloc(1 << 16);
    NEED(!sigaltstack(&stack, NULL));
    return OK;
}
static const char *check_stack(void)
{
    stack_t now;

    NEED(!sigaltstack(NULL, &now) && now.ss_sp == stack.ss_sp && now.ss_size == stack.ss_size);
    return OK;
}

static char *memory;
static const char *make_shared(void)
{
    memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(memory != MAP_FAILED);
    strcpy(memory + 70000, "shared");
    if (!fork()) {
        while (access("/tmp/go", F_OK))
            sleep_ms(20);
        strcpy(memory + 200, "from the child");
        _exit(0);
    }
    return OK;
}
static const char *check_shared(void)
{
    NEED(!strcmp(memory + 70000, "shared"));
    for (int i = 0; i < 400 && !*(volatile char *)(memory + 200); i++)
        sleep_ms(10);
    NEED(!strcmp(memory + 200, "from the child"));
    return OK;
}

static int flagged(const char *flag)
{
    char line[512];
    FILE *file = fopen("/proc/self/smaps", "r");
    unsigned long begin;
    int ours = 0, found = 0;

    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-", &begin) == 1 && strchr(line, '-') && strchr(line, '-') < strchr(line, ' '))
            ours = begin == (unsigned long)memory;
        else if (ours && !strncmp(line, "VmFlags", 7))
            found = !!strstr(line, flag);
    }
    if (file)
        fclose(file);
    return found;
}
static const char *make_advice(void)
{
    memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(memory != MAP_FAILED && !madvise(memory, 1 << 20, MADV_DONTFORK) && !mlock(memory, 1 << 20));
    NEED(flagged(" dc") && flagged(" lo"));
    return OK;
}
static const char *check_advice(void)
{
    NEED(flagged(" dc"));
    NEED(flagged(" lo"));
    return OK;
}

static const char *make_membarrier(void) { NEED(!syscall(SYS_membarrier, 16, 0, 0)); return OK; }
static const char *check_membarrier(void) { NEED(!syscall(SYS_membarrier, 8, 0, 0)); return OK; }

#define CASE(name) {#name, make_##name, check_##name}
const struct object processes[] = {
    CASE(pending), CASE(scheduling), CASE(affinity), CASE(ionice), CASE(slack), CASE(limits), CASE(prctl),
    CASE(subreaper), CASE(stack), CASE(shared), CASE(advice), CASE(membarrier), {0},
};
