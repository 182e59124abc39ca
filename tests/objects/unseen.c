/* State of processes and of the kernel that CRIU does not ask for: some of it is refused, some is lost. */
#include "objects.h"

#include <linux/filter.h>
#include <poll.h>
#include <pthread.h>
#include <sys/fanotify.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

static int fd, id;

static void *wait_here(void *nothing)
{
    while (1)
        pause();
    return nothing;
}
/* The amount that a process has added to a semaphore so is subtracted when it ends. */
static const char *undo(int has_threads)
{
    struct sembuf add = {.sem_num = 0, .sem_op = 3, .sem_flg = SEM_UNDO};
    pthread_t thread;

    id = semget(IPC_PRIVATE, 1, IPC_CREAT | 0600);
    NEED(id >= 0);
    if (!fork()) {
        if ((has_threads && pthread_create(&thread, NULL, wait_here, NULL)) || semop(id, &add, 1))
            _exit(1);
        while (access("/tmp/go", F_OK))
            sleep_ms(20);
        sleep_ms(300);
        _exit(0);
    }
    while (semctl(id, 0, GETVAL) != 3)
        sleep_ms(5);
    return OK;
}
static const char *make_sem_undo(void) { return undo(0); }
static const char *make_sem_undo_threads(void) { return undo(1); }
static const char *check_sem_undo(void)
{
    NEED(semctl(id, 0, GETVAL) == 3 && wait(NULL) > 0);
    return semctl(id, 0, GETVAL) ? "its end subtracts nothing" : OK;
}
static const char *make_sem_used(void)
{
    struct sembuf add = {.sem_num = 0, .sem_op = 3};

    id = semget(IPC_PRIVATE, 1, IPC_CREAT | 0600);
    NEED(id >= 0 && !semop(id, &add, 1));
    return OK;
}
static const char *check_sem_used(void) { NEED(semctl(id, 0, GETVAL) == 3); return OK; }

static const char *make_dnotify(void)
{
    NEED(!mkdir("/tmp/a-notified", 0700) && (fd = open("/tmp/a-notified", O_RDONLY)) >= 0);
    NEED(!fcntl(fd, F_NOTIFY, DN_CREATE | DN_MULTISHOT));
    return OK;
}
static const char *check_nothing(void) { return OK; }

static const char *make_personality(void) { NEED(personality(ADDR_NO_RANDOMIZE) >= 0); return OK; }
static const char *check_personality(void)
{
    int now = personality(0xffffffff);

    return now == ADDR_NO_RANDOMIZE ? OK : wrong("personality %#x", now);
}
static const char *make_mce_kill(void)
{
    NEED(!prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0));
    return OK;
}
static const char *check_mce_kill(void)
{
    int now = prctl(PR_MCE_KILL_GET, 0, 0, 0, 0);

    return now == PR_MCE_KILL_EARLY ? OK : wrong("policy %d", now);
}

/* Of 1 MiB one page is written, and that alone is locked. */
static char *memory;
static const char *make_locked_onfault(void)
{
    memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(memory != MAP_FAILED && !mlock2(memory, 1 << 20, MLOCK_ONFAULT));
    memory[0] = 7;
    return OK;
}
static const char *check_locked_onfault(void)
{
    unsigned char there[256];
    int pages = 0;

    NEED(memory[0] == 7 && !mincore(memory, 1 << 20, there));
    for (int i = 0; i < 256; i++)
        pages += there[i] & 1;
    return pages == 1 ? OK : wrong("%d pages are there", pages);
}

/* It has the bytes that were written until the kernel drops it; a child of fork has zeros. */
static const char *make_droppable(void)
{
    memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | 0x08, -1, 0);
    NEED(memory != MAP_FAILED);
    memory[0] = 7;
    return OK;
}
static int is_droppable(void)
{
    char line[512];
    FILE *file = fopen("/proc/self/smaps", "r");
    int ours = 0, is = 0;

    while (file && fgets(line, sizeof line, file)) {
        unsigned long begin, end;

        if (sscanf(line, "%lx-%lx", &begin, &end) == 2)
            ours = begin <= (unsigned long)memory && (unsigned long)memory < end;
        else if (ours && !strncmp(line, "VmFlags", 7))
            is = !!strstr(line, " dp");
    }
    return is;
}
static const char *check_droppable(void)
{
    int status;
    pid_t child;

    NEED(memory[0] == 7 || memory[0] == 0);
    memory[0] = 8;
    NEED(memory[0] == 8 && is_droppable());
    child = fork();
    if (!child)
        _exit(memory[0]);
    NEED(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && !WEXITSTATUS(status) ? OK : "a child of fork has its content";
}

static double used;
static const char *make_cpu_time(void)
{
    while (now_on(CLOCK_PROCESS_CPUTIME_ID) < 0.3)
        ;
    used = now_on(CLOCK_PROCESS_CPUTIME_ID);
    return OK;
}
static const char *check_cpu_time(void) { return now_on(CLOCK_PROCESS_CPUTIME_ID) < used ? "it began anew" : OK; }

static const char *make_fanotify_mark(void)
{
    NEED(!mkdir("/tmp/a-marked", 0700));
    NEED((fd = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID | FAN_NONBLOCK, 0)) >= 0);
    NEED(!fanotify_mark(fd, FAN_MARK_ADD | FAN_MARK_ONLYDIR, FAN_CREATE | FAN_ONDIR, AT_FDCWD, "/tmp/a-marked"));
    return OK;
}
static const char *check_fanotify_mark(void)
{
    struct pollfd look = {.fd = fd, .events = POLLIN};

    NEED(close(open("/tmp/a-marked/after", O_CREAT, 0600)) == 0);
    return poll(&look, 1, 1000) == 1 ? OK : "no event";
}

static const char *make_socket_filter(void)
{
    struct sock_filter all[] = {{BPF_RET | BPF_K, 0, 0, 0xffff}};
    struct sock_fprog program = {1, all};

    NEED((fd = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
    NEED(!setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
    return OK;
}
static const char *check_socket_filter(void)
{
    struct sock_filter program[4];
    socklen_t count = 4;

    NEED(!getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, program, &count));
    return count == 1 && program[0].k == 0xffff ? OK : wrong("%u instructions", count);
}

#define CASE(name, check) {#name, make_##name, check}
const struct object unseen[] = {
    CASE(sem_undo, check_sem_undo), CASE(sem_undo_threads, check_sem_undo), CASE(sem_used, check_sem_used),
    CASE(dnotify, check_nothing), CASE(personality, check_personality), CASE(mce_kill, check_mce_kill),
    CASE(locked_onfault, check_locked_onfault), CASE(droppable, check_droppable),
    CASE(cpu_time, check_cpu_time),
    CASE(fanotify_mark, check_fanotify_mark), CASE(socket_filter, check_socket_filter), {0},
};
