/*
 * See supervise.h. Invariants: the exit file is written after all output, and only when no process of the program's
 * group is left. As a subreaper the holder also adopts, and so can reap, what the program leaves behind.
 */
#include "supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wherry/process.h"

enum {
    GRACE_MS = 5000, /* from the first SIGINT or SIGTERM to SIGKILL */
    DRAIN_MS = 200,  /* a daemonised descendant may keep the pipes open for ever */
    CHUNK = 64 << 10,
    SANDBOX = 3, /* our socket as the sandbox's first process has it */
};

static int wakeup[2] = {-1, -1};
static volatile sig_atomic_t requests, last_request;

static void on_signal(int number)
{
    int saved = errno;

    if (number != SIGCHLD) {
        requests++;
        last_request = number;
    }
    (void)!write(wakeup[1], "", 1);
    errno = saved;
}

static int catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

    if (pipe2(wakeup, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    sigaction(SIGCHLD, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    return 0;
}

static _Noreturn void child_fail(int verdict, const char *what, const char *object, int error)
{
    dprintf(verdict, "failed cannot %s %s: %s\n", what, object, strerror(error));
    _exit(127);
}

static _Noreturn void run_program(const struct program *program, const int streams[3], int verdict, pid_t holder)
{
    int error;

    setpgid(0, 0);
    process_reset_signals();
    for (int fd = 0; fd < 3; fd++)
        if (dup2(streams[fd], fd) < 0)
            child_fail(verdict, "give a stream to", program->argv[0], errno);
    if (program->sandbox) {
        if (verdict == SANDBOX ? fcntl(verdict, F_SETFD, 0) < 0 : dup2(verdict, SANDBOX) < 0)
            child_fail(verdict, "give a socket to", program->argv[0], errno);
        verdict = SANDBOX;
    }
    error = process_become(program->uid, program->gid, program->groups, (size_t)program->group_count);
    if (error < 0)
        child_fail(verdict, "become the user for", program->argv[0], -error);
    /* After the change of user, which clears it. */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != holder)
        _exit(127);
    if (chdir(program->cwd) < 0)
        child_fail(verdict, "enter the directory", program->cwd, errno);
    execvp(program->argv[0], program->argv);
    child_fail(verdict, "run", program->argv[0], errno);
}

static _Noreturn void start_fail(int report, const char *what, const char *object, int error)
{
    dprintf(report, "failed cannot %s %s: %s\n", what, object, strerror(error));
    exit(1);
}

/* The first process of the sandbox is our child once the program that made it has ended: the holder adopts it. */
static void enter_sandbox(struct program *program, int verdict, int errors, int report)
{
    char text[1024] = "";
    FILE *file;
    int status, first = 0;

    while (waitpid(program->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (!WIFEXITED(status) || WEXITSTATUS(status)) {
        if (recv(verdict, text, sizeof text - 1, MSG_DONTWAIT) <= 0 && read(errors, text, sizeof text - 1) <= 0)
            snprintf(text, sizeof text, "%s did not make the sandbox", program->argv[0]);
        process_write_all(report, "failed ", strncmp(text, "failed ", 7) == 0 ? 0 : 7);
        process_write_all(report, text, strcspn(text, "\n"));
        exit(1);
    }
    file = fopen(program->sandbox, "re");
    if (!file || fscanf(file, "%d", &first) != 1 || first <= 1)
        start_fail(report, "read", program->sandbox, errno);
    fclose(file);
    program->pid = first;
    if (send(verdict, "", 1, MSG_NOSIGNAL) != 1)
        start_fail(report, "enter", "the sandbox", errno);
}

/* The program's standard input. Returns negative errno when there is none. */
static int open_input(struct program *program, const struct job_files *files)
{
    int end, error;

    program->input.fifo = program->input.program = -1;
    if (program->has_input) {
        error = job_input_open(&program->input, files->directory, &end);
        return error < 0 ? error : end;
    }
    end = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return end < 0 ? -errno : end;
}

void supervise_start(struct program *program, const struct job_files *files, int report)
{
    int verdict[2], out[2], err[2], input;
    pid_t holder = getpid();
    char text[1024];
    ssize_t count;

    input = open_input(program, files);
    if (input < 0)
        start_fail(report, "open", "the standard input", -input);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (catch_signals() < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, verdict) < 0 ||
        pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0)
        start_fail(report, "make", "a pipe", errno);
    program->pid = fork();
    if (program->pid < 0)
        start_fail(report, "fork", program->argv[0], errno);
    if (program->pid == 0)
        run_program(program, (int[3]){input, out[1], err[1]}, verdict[1], holder);
    setpgid(program->pid, program->pid); /* here too: a signal must not come before the child's own call */
    close(input);
    close(verdict[1]);
    close(out[1]);
    close(err[1]);
    if (program->sandbox)
        enter_sandbox(program, verdict[0], err[0], report);
    while ((count = read(verdict[0], text, sizeof text)) < 0 && errno == EINTR)
        continue;
    if (count < 0)
        start_fail(report, "read", "the sandbox's socket", errno);
    if (count > 0) {
        process_write_all(report, text, (size_t)count);
        exit(1);
    }
    close(verdict[0]);
    program->output[0] = out[0];
    program->output[1] = err[0];
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    fcntl(err[0], F_SETFL, O_NONBLOCK);
}

/* Keeps at most one chunk. Returns false when nothing was there to read, or a stream takes no more. */
static bool keep_output(struct program *program, struct job_files *files, int which)
{
    static uint8_t frame[JOB_OUTPUT_HEADER + CHUNK];
    ssize_t count;

    if (program->output[which] < 0 || files->rest_length)
        return false;
    count = read(program->output[which], frame + JOB_OUTPUT_HEADER, CHUNK);
    if (count > 0) {
        job_files_append(files, (uint8_t)(which + 1), frame, (size_t)count);
        return true;
    }
    if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
        close(program->output[which]);
        program->output[which] = -1;
    }
    return false;
}

/*
 * Reaps the processes that the program left behind. Returns true when the program itself has ended; that is not reaped,
 * as its number, by which its group is killed, would be free for others.
 */
static bool has_ended(const struct program *program)
{
    siginfo_t one = {0};

    while (waitid(P_ALL, 0, &one, WEXITED | WNOHANG | WNOWAIT) == 0 && one.si_pid) {
        if (one.si_pid == program->pid)
            return true;
        waitpid(one.si_pid, NULL, 0);
        one.si_pid = 0;
    }
    return false;
}

/* Passes a SIGINT or SIGTERM on; from the second one, and after the grace, SIGKILL. `*stopped` is the first of them. */
static void pass_signals(const struct program *program, int *passed, int *stopped, int64_t *kill_at)
{
    int64_t now = process_now_ms();

    if (requests > *passed) {
        if (*passed == 0) {
            *stopped = last_request;
            *kill_at = now + GRACE_MS;
        }
        kill(-program->pid, *passed == 0 ? *stopped : SIGKILL);
        *passed = requests;
    }
    if (*kill_at && now >= *kill_at) {
        kill(-program->pid, SIGKILL);
        *kill_at = 0;
    }
}

/* A reader who takes its time has the output all the same, unless it is gone or the job was ended. */
static void flush_stream(struct job_files *files)
{
    while (files->rest_length && requests == 0) {
        struct pollfd polls[2] = {{.fd = files->output, .events = POLLOUT}, {.fd = wakeup[0], .events = POLLIN}};
        char drain[64];

        poll(polls, 2, -1);
        (void)!read(wakeup[0], drain, sizeof drain);
        job_files_flush(files);
    }
}

/* The bytes in the pipes when the program has ended, and output that its descendants still write for a moment. */
static void drain_output(struct program *program, struct job_files *files)
{
    int64_t end = process_now_ms() + DRAIN_MS, left = DRAIN_MS;

    while ((program->output[0] >= 0 || program->output[1] >= 0) && left > 0) {
        struct pollfd polls[2] = {{.fd = program->output[0], .events = POLLIN},
                                  {.fd = program->output[1], .events = POLLIN}};

        poll(polls, 2, (int)left);
        keep_output(program, files, 0);
        flush_stream(files);
        keep_output(program, files, 1);
        flush_stream(files);
        left = end - process_now_ms();
    }
    /* A full pipe of a slow moment: at most its capacity, so that an endless writer cannot keep us. */
    for (int which = 0; which < 2; which++)
        for (int chunks = 0; chunks < 16 && keep_output(program, files, which); chunks++)
            flush_stream(files);
}

int supervise_until_end(struct program *program, struct job_files *files)
{
    int status = 0, passed = 0, stopped = 0;
    int64_t kill_at = 0;
    char drain[64];

    for (;;) {
        bool full = files->rest_length > 0;
        struct pollfd polls[5] = {{.fd = full ? -1 : program->output[0], .events = POLLIN},
                                  {.fd = full ? -1 : program->output[1], .events = POLLIN},
                                  {.fd = wakeup[0], .events = POLLIN},
                                  job_input_awaited(&program->input),
                                  {.fd = files->stream ? files->output : -1, .events = full ? POLLOUT : 0}};

        poll(polls, 5, kill_at ? 100 : -1);
        while (read(wakeup[0], drain, sizeof drain) > 0)
            continue;
        job_files_flush(files);
        if (polls[4].revents & POLLERR) {
            close(files->output);
            files->output = -1;
        }
        if (files->stream && files->output < 0 && requests == 0) /* nobody reads it any more */
            on_signal(SIGTERM);
        keep_output(program, files, 0);
        keep_output(program, files, 1);
        job_input_pass(&program->input);
        if (has_ended(program))
            break; /* before a signal is passed: a signal that came too late has stopped nothing */
        pass_signals(program, &passed, &stopped, &kill_at);
    }
    drain_output(program, files);
    kill(-program->pid, SIGKILL);
    waitpid(program->pid, &status, 0);
    drain_output(program, files);
    return job_files_write_exit(files, status, stopped);
}
