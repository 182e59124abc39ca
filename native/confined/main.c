/*
 * wherry-confined: the first process of the sandbox of a job's launcher, in a PID namespace of its own.
 *
 *   wherry-confined ENVIRONMENT ARGUMENTS
 *
 * Runs the launcher with the variables of the file ENVIRONMENT and the words of the file ARGUMENTS, each of which ends
 * with NUL, in a process group of its own. It begins when a byte comes from descriptor 3, the socket of the holder
 * (wherry-launch, whose child this process is by then), and reports there why the launcher was not run. SIGINT and SIGTERM
 * are passed to the launcher's group. Exit code: the launcher's, 128 + signal when one ended it; 125 when it did not
 * begin. With this process the kernel ends all others of the namespace, and this process ends with the holder.
 *
 * It has no rights that the launcher lacks. The launcher's processes cannot reach it, as it is not dumpable, and signals
 * of its own namespace do not end a first process.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wherry/process.h"

enum { HOLDER = 3, NOT_BEGUN = 125 };

static _Noreturn void fail(const char *what, const char *object)
{
    dprintf(HOLDER, "failed cannot %s %s: %s\n", what, object, strerror(errno));
    _exit(NOT_BEGUN);
}

/* The strings of a file, and NULL behind them. */
static char **read_strings(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat about;
    size_t have = 0, count = 0;
    char *text, **strings;

    if (fd < 0 || fstat(fd, &about) < 0)
        fail("open", path);
    text = malloc((size_t)about.st_size + 1);
    if (!text)
        fail("read", path);
    for (ssize_t got; have < (size_t)about.st_size; have += (size_t)got) {
        got = read(fd, text + have, (size_t)about.st_size - have);
        if (got <= 0)
            fail("read", path);
    }
    close(fd);
    text[have] = 0;
    for (size_t i = 0; i < have; i++)
        count += !text[i];
    strings = calloc(count + 1, sizeof *strings);
    if (!strings)
        fail("read", path);
    for (size_t i = 0; i < count; i++, text += strlen(text) + 1)
        strings[i] = text;
    return strings;
}

/* Only now is the holder this process's parent, at whose death the kernel is to kill it. */
static void await_holder(void)
{
    char byte;

    if (recv(HOLDER, &byte, 1, 0) != 1 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        _exit(NOT_BEGUN);
    if (recv(HOLDER, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) /* it has died before that */
        _exit(NOT_BEGUN);
}

static pid_t run(char **argv)
{
    pid_t pid = fork();

    if (pid < 0)
        fail("fork for", argv[0]);
    if (pid == 0) {
        setpgid(0, 0);
        process_reset_signals();
        execvp(argv[0], argv);
        fail("run", argv[0]);
    }
    setpgid(pid, pid); /* here too: a signal must not come before the child's own call */
    return pid;
}

static _Noreturn void stay(pid_t program, const sigset_t *awaited)
{
    for (;;) {
        int status, number = sigwaitinfo(awaited, NULL);
        pid_t pid;

        if (number == SIGINT || number == SIGTERM)
            kill(-program, number);
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            if (pid == program)
                _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
    }
}

int main(int argc, char **argv)
{
    char **words;
    sigset_t awaited;
    pid_t program;

    if (argc != 3) {
        fputs("usage: wherry-confined ENVIRONMENT ARGUMENTS\n", stderr);
        return NOT_BEGUN;
    }
    syscall(SYS_close_range, HOLDER + 1u, ~0u, 0u);
    fcntl(HOLDER, F_SETFD, FD_CLOEXEC);
    prctl(PR_SET_DUMPABLE, 0);
    setsid(); /* the holder signals its process group; the runtime may have made one already */
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGCHLD);
    sigaddset(&awaited, SIGINT);
    sigaddset(&awaited, SIGTERM);
    sigprocmask(SIG_BLOCK, &awaited, NULL); /* a first process takes a blocked signal, and no other without a handler */
    environ = read_strings(argv[1]);
    words = read_strings(argv[2]);
    if (!words[0])
        return NOT_BEGUN;
    await_holder();
    program = run(words);
    close(HOLDER); /* the launcher's exec closes the other one, so the holder reads the end */
    process_detach_streams(); /* the launcher's ends alone keep the holder's pipes open */
    stay(program, &awaited);
}
