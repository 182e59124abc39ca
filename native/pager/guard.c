/* See guard.h. After the clone only system calls are made: the other threads may have held any lock. */
#include "guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "node_group.h"

struct guard_shared {
    _Atomic int armed;
};

static const char ACTED[] = "wherry-pager: receive has ended too early: its guard has killed the node's processes\n";

static void write_text(int fd, const char *text)
{
    ssize_t written = write(fd, text, strlen(text));

    (void)written;
}

static bool set_oom_score(const char *value)
{
    int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    bool set = file >= 0 && write(file, value, strlen(value)) > 0;

    if (file >= 0)
        close(file);
    return set;
}

void oom_protect(void)
{
    if (!set_oom_score("-1000") && !set_oom_score("-500"))
        set_oom_score("0");
}

void oom_volunteer(void)
{
    if (set_oom_score("-1000")) /* without CAP_SYS_RESOURCE there would be no way back */
        set_oom_score("1000");
}

static void kill_node(const char *tasks)
{
    struct timespec pause = {.tv_nsec = 1000000};

    /* The process that started us would wait for the end of these; and a descriptor must be free. */
    close(0);
    close(1);
    while (node_group_kill(tasks) > 0) {
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 100000000)
            pause.tv_nsec *= 2; /* a frozen process dies when it is thawed */
    }
    write_text(2, ACTED);
}

static _Noreturn void run(const struct guard *guard)
{
    struct pollfd wait[] = {{.fd = guard->receiver, .events = POLLIN}, {.fd = guard->stop, .events = POLLIN}};

    setsid();
    prctl(PR_SET_NAME, "wherry-guard", 0, 0, 0);
    oom_protect();
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_IGN);
    while (poll(wait, 2, -1) < 0 || !(wait[0].revents | wait[1].revents))
        ;
    if (!wait[1].revents && guard->shared->armed)
        kill_node(guard->tasks);
    _exit(0);
}

int guard_again(struct guard *guard)
{
    long pid;

    if (guard->pid > 0) {
        waitpid(guard->pid, NULL, 0);
        close(guard->guard);
    }
    pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        run(guard);
    if (pid < 0)
        return -errno;
    guard->pid = (int)pid;
    guard->guard = (int)syscall(SYS_pidfd_open, guard->pid, 0);
    return guard->guard < 0 ? -errno : 0;
}

int guard_start(struct guard *guard, const char *tasks)
{
    void *shared = mmap(NULL, sizeof(*guard->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (shared == MAP_FAILED)
        return -errno;
    *guard = (struct guard){.tasks = tasks, .shared = shared};
    guard->receiver = (int)syscall(SYS_pidfd_open, getpid(), 0);
    guard->stop = eventfd(0, EFD_CLOEXEC);
    if (guard->receiver < 0 || guard->stop < 0)
        return -errno;
    return guard_again(guard);
}

void guard_arm(struct guard *guard)
{
    guard->shared->armed = 1;
}

void guard_disarm(struct guard *guard)
{
    guard->shared->armed = 0;
}

void guard_end(struct guard *guard)
{
    eventfd_write(guard->stop, 1);
    waitpid(guard->pid, NULL, 0);
}
