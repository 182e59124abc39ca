/*
 * wherry-launch: holds a job's launcher (mpirun, mpiexec), its streams and its exit code, and outlives the daemon.
 *
 *   wherry-launch --dir JOBDIR --uid U --gid G [--groups A,B] --cwd DIR [--input] [--keep BYTES] [--stream]
 *                 [--sandbox FILE] -- PROGRAM ARGUMENT...
 *
 * Prints "ready" on its standard output when the program was exec'ed (exit 0; the holder continues in the background),
 * or "failed REASON" (exit 1; nothing was started). The files that it keeps in JOBDIR: job_files.h, and with --input
 * the pipe of job_input.h; without it the program reads nothing. Of its output the first BYTES are kept (1 GiB); with
 * --stream none is: its frames go to this program's standard input, a pipe, the program waits while nobody reads there,
 * and gets SIGTERM, and SIGKILL after 5 s, when nobody will. It gets this program's environment and a process group of its own. SIGINT and SIGTERM are passed to that group; the
 * group is killed 5 s after the first of them came, or at the next one, and in any case when the program has ended.
 * Killing the holder itself makes the program get SIGTERM. With --sandbox PROGRAM makes a sandbox, writes the process id
 * of its first process (wherry-confined) into FILE, and ends: that process is then held as the program, and killed with
 * the holder.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "supervise.h"
#include "wherry/number.h"
#include "wherry/process.h"
#include "wherry/wire.h"

static int report = -1; /* pipe to the process that the daemon waits for */

static _Noreturn void usage(void)
{
    fputs("usage: wherry-launch --dir JOBDIR --uid U --gid G [--groups A,B] --cwd DIR [--input] "
          "[--keep BYTES] [--stream] [--sandbox FILE] -- PROGRAM ARGUMENT...\n", stderr);
    exit(2);
}

static _Noreturn void fail(const char *what, const char *object, int error)
{
    dprintf(report, "failed cannot %s %s: %s\n", what, object, strerror(error));
    exit(1);
}

static uint64_t number_or_usage(const char *text)
{
    uint64_t value;

    if (number_parse(text, strlen(text), UINT32_MAX - 1, &value) < 0)
        usage();
    return value;
}

static void read_options(int argc, char **argv, struct program *program, const char **directory, uint64_t *keep,
                         int *stream)
{
    static const struct option options[] = {
        {"dir", required_argument, NULL, 'd'},    {"uid", required_argument, NULL, 'u'},
        {"gid", required_argument, NULL, 'g'},    {"groups", required_argument, NULL, 's'},
        {"cwd", required_argument, NULL, 'c'},    {"input", no_argument, NULL, 'i'},
        {"keep", required_argument, NULL, 'k'},   {"sandbox", required_argument, NULL, 'b'},
        {"stream", no_argument, NULL, 't'},       {0}};
    bool uid_given = false, gid_given = false;
    int option;

    while ((option = getopt_long(argc, argv, "+", options, NULL)) >= 0) {
        if (option == 'd') {
            *directory = optarg;
        } else if (option == 'u') {
            program->uid = (uid_t)number_or_usage(optarg);
            uid_given = true;
        } else if (option == 'g') {
            program->gid = (gid_t)number_or_usage(optarg);
            gid_given = true;
        } else if (option == 's') {
            program->group_count = wire_parse_groups(optarg, program->groups, WIRE_GROUPS_MAX);
        } else if (option == 'c') {
            program->cwd = optarg;
        } else if (option == 'i') {
            program->has_input = true;
        } else if (option == 'k') {
            *keep = number_or_usage(optarg);
        } else if (option == 't') {
            *stream = STDIN_FILENO;
        } else if (option == 'b') {
            program->sandbox = optarg;
        } else {
            usage();
        }
    }
    program->argv = argv + optind;
    if (!*directory || !program->cwd || !uid_given || !gid_given || program->group_count < 0 || optind == argc)
        usage();
}

/* The process that the daemon started: passes on the holder's report. */
static int wait_for_report(int from)
{
    char text[1024];
    size_t count = 0;
    ssize_t got;

    while (count < sizeof text && (got = read(from, text + count, sizeof text - count)) != 0)
        if (got > 0)
            count += (size_t)got;
        else if (errno != EINTR)
            break;
    if (count == 0)
        count = (size_t)snprintf(text, sizeof text, "failed the holder ended before it reported\n");
    process_write_all(STDOUT_FILENO, text, count);
    return strncmp(text, "ready", 5) == 0 ? 0 : 1;
}

/* The waiting process reads that pipe alone. Asked when the pid file is there, by which the holder is found. */
static bool is_waited_for(void)
{
    struct pollfd end = {.fd = report};

    return poll(&end, 1, 0) == 0 || !(end.revents & POLLERR);
}

int main(int argc, char **argv)
{
    static struct program program;
    const char *directory = NULL;
    uint64_t keep = JOB_OUTPUT_LIMIT;
    struct job_files files;
    int pipe_ends[2], error, stream = -1;
    pid_t pid;

    read_options(argc, argv, &program, &directory, &keep, &stream);
    error = process_close_inherited();
    report = STDOUT_FILENO;
    if (error < 0 || pipe2(pipe_ends, O_CLOEXEC) < 0)
        fail("make", "a pipe", errno);
    pid = fork();
    if (pid < 0)
        fail("fork", "the holder", errno);
    if (pid > 0) {
        close(pipe_ends[1]);
        return wait_for_report(pipe_ends[0]);
    }
    report = pipe_ends[1];
    close(pipe_ends[0]);
    setsid();
    pid = fork();
    if (pid < 0)
        fail("fork", "the holder", errno);
    if (pid > 0)
        _exit(0);
    umask(022);
    error = job_files_open(&files, directory, keep, stream);
    if (error < 0)
        fail("use the job directory", directory, -error);
    error = job_files_write_pid(&files);
    if (error < 0)
        fail("write the pid file in", directory, -error);
    if (!is_waited_for()) /* the daemon has given up: the job counts as not started */
        return 1;
    supervise_start(&program, &files, report);
    error = process_detach_streams();
    if (error < 0)
        fail("open", "/dev/null", -error);
    process_write_all(report, "ready\n", 6);
    close(report);
    return supervise_until_end(&program, &files) < 0;
}
