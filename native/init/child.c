/*
 * Programs below the init. Invariant: a child owns nothing of the init but its three pipe ends; every other descriptor
 * is close-on-exec, and the close-on-exec verdict pipe reports whether exec worked.
 */
#include "child.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wherry/process.h"

void child_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static _Noreturn void child_fail(int verdict, const char *what, const char *object, int error)
{
    char text[WIRE_TEXT_MAX];
    int length = snprintf(text, sizeof text, "cannot %s %.300s: %s", what, object, strerror(error));

    process_write_all(verdict, text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
    _exit(127);
}

static _Noreturn void child_run(const struct wire_run *run, const int streams[3], int verdict)
{
    int error;

    setsid();
    process_reset_signals();
    inherited_apply(&run->inherited);
    for (int fd = 0; fd < 3; fd++)
        if (dup2(streams[fd], fd) < 0)
            child_fail(verdict, "give a stream to", run->argv[0], errno);
    error = process_become(run->uid, run->gid, run->groups, run->group_count);
    if (error < 0)
        child_fail(verdict, "become the user for", run->argv[0], -error);
    if (chdir(run->cwd) < 0)
        child_fail(verdict, "enter the directory", run->cwd, errno);
    /* execvp searches the PATH of `environ`, but the request's PATH counts. */
    environ = run->envp;
    execvp(run->argv[0], run->argv);
    child_fail(verdict, "run", run->argv[0], errno);
}

int child_start(const struct wire_run *run, struct child *child)
{
    int pipes[4][2] = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}}; /* in, out, err, verdict */
    int error = 0;

    for (int i = 0; i < 4 && !error; i++)
        if (pipe2(pipes[i], O_CLOEXEC) < 0)
            error = -errno;
    if (!error) {
        child->pid = fork();
        if (child->pid < 0)
            error = -errno;
    }
    if (!error && child->pid == 0)
        child_run(run, (int[3]){pipes[0][0], pipes[1][1], pipes[2][1]}, pipes[3][1]);
    child_close(&pipes[0][0]);
    for (int i = 1; i < 4; i++)
        child_close(&pipes[i][1]);
    child->input = pipes[0][1];
    child->output[0] = pipes[1][0];
    child->output[1] = pipes[2][0];
    child->verdict = pipes[3][0];
    if (error) {
        child_close(&child->input);
        child_close(&child->output[0]);
        child_close(&child->output[1]);
        child_close(&child->verdict);
        child->pid = 0;
        return error;
    }
    fcntl(child->input, F_SETFL, O_NONBLOCK);
    fcntl(child->output[0], F_SETFL, O_NONBLOCK);
    fcntl(child->output[1], F_SETFL, O_NONBLOCK);
    fcntl(child->verdict, F_SETFL, O_NONBLOCK);
    return 0;
}

/* State letter, parent, process group and session of /proc/PID/stat. The name in it may hold blanks and brackets. */
static int read_stat(const char *pid, char *state, pid_t *parent, pid_t *group, pid_t *session)
{
    char path[64], text[512], *after;
    ssize_t count;
    int fd;

    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    count = read(fd, text, sizeof text - 1);
    close(fd);
    if (count <= 0)
        return -ESRCH;
    text[count] = 0;
    after = strrchr(text, ')');
    return after && sscanf(after + 1, " %c %d %d %d", state, parent, group, session) == 4 ? 0 : -ESRCH;
}

void child_signal_session(pid_t leader, int signal_number)
{
    DIR *processes = opendir("/proc");
    struct dirent *entry;

    kill(-leader, signal_number);
    if (!processes)
        return;
    while ((entry = readdir(processes))) {
        pid_t parent, group, session;
        char state;

        if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
            continue;
        if (read_stat(entry->d_name, &state, &parent, &group, &session) == 0 && session == leader && group != leader)
            kill(atoi(entry->d_name), signal_number);
    }
    closedir(processes);
}

int child_count(void)
{
    DIR *processes = opendir("/proc");
    struct dirent *entry;
    int count = 0;

    if (!processes)
        return 0;
    while ((entry = readdir(processes))) {
        pid_t parent, group, session;
        char state;

        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
            read_stat(entry->d_name, &state, &parent, &group, &session) == 0)
            count += parent == getpid() && state != 'Z';
    }
    closedir(processes);
    return count;
}
