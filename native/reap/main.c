/*
 * wherry-reap: runs a program that goes to the background, and stays to reap the processes that it leaves behind.
 *
 *   wherry-reap PROGRAM ARGUMENT...
 *
 * libvirt takes a QEMU that has ended for a running one until its process id is gone. The parent of a QEMU is the
 * process that takes in orphans: process 1, which in many containers looks seldom or never. This process takes them in
 * instead, and ends with the last of them. Exit code: the program's, as soon as it has one; 125 when it could not be
 * run.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wherry/process.h"

static _Noreturn void fail(const char *what, const char *object)
{
    fprintf(stderr, "wherry-reap: cannot %s %s: %s\n", what, object, strerror(errno));
    exit(125);
}

/* Reaps until nobody is left; writes the program's exit code to `report` when it has one. */
static _Noreturn void reap(pid_t program, int report)
{
    int status;
    pid_t pid;

    while ((pid = wait(&status)) > 0 || errno == EINTR) {
        unsigned char code = WIFEXITED(status) ? (unsigned char)WEXITSTATUS(status) : 125;

        if (pid != program)
            continue;
        process_write_all(report, &code, 1);
        close(report);
        process_detach_streams(); /* the caller waits for their end */
    }
    exit(0);
}

static _Noreturn void stay(char **argv, int report)
{
    pid_t program;

    setsid();
    if (chdir("/") < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        fail("take in the orphans of", argv[0]);
    program = fork();
    if (program < 0)
        fail("fork for", argv[0]);
    if (program > 0)
        reap(program, report);
    execvp(argv[0], argv);
    fail("run", argv[0]);
}

int main(int argc, char **argv)
{
    unsigned char code = 125;
    int report[2];
    pid_t pid;

    if (argc < 2) {
        fputs("usage: wherry-reap PROGRAM ARGUMENT...\n", stderr);
        return 125;
    }
    if (pipe2(report, O_CLOEXEC) < 0)
        fail("make a pipe for", argv[1]);
    pid = fork();
    if (pid < 0)
        fail("fork for", argv[1]);
    if (pid == 0)
        stay(argv + 1, report[1]);
    close(report[1]);
    while (read(report[0], &code, 1) < 0 && errno == EINTR)
        continue;
    return code;
}
