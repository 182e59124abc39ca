/*
 * wherry-ns: runs a program in given namespaces and cgroups.
 *
 *   wherry-ns [--net PATH] [--mnt PATH] [--time PATH | --clocks MONOTONIC:BOOTTIME] [--cgroup FILE]...
 *             [--cgroup-root FILE]... [--number FILE] -- PROGRAM ARGUMENT...
 *
 * --time enters a time namespace; --clocks makes one, whose clocks are ahead of the host's by so many nanoseconds
 * (time_namespaces(7)), and enters it.
 * Every FILE of a cgroup is a cgroup.procs (or tasks) file of the host; they are written before the namespaces are
 * entered, since another mount namespace may not have them. --cgroup-root makes the cgroups of its files the roots of
 * the hierarchies as the program sees them (cgroup_namespaces(7)); it is not in these cgroups. The last FILE gets the
 * program's process id and when it started (clock ticks, proc(5), field 22), before the program begins: so the process
 * that started it may die at any time, and it is found again. Exit code 125: not even started; else the program's own.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80 /* linux/sched.h, since Linux 5.6 */
#endif
#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000 /* linux/sched.h, since Linux 4.6 */
#endif
#define SECOND 1000000000LL
#define ROOTS 16

static _Noreturn void fail(const char *what, const char *object)
{
    fprintf(stderr, "wherry-ns: cannot %s %s: %s\n", what, object, strerror(errno));
    exit(125);
}

static _Noreturn void usage(void)
{
    fputs("usage: wherry-ns [--net PATH] [--mnt PATH] [--time PATH | --clocks MONOTONIC:BOOTTIME] [--cgroup FILE]...\n"
          "       [--cgroup-root FILE]... [--number FILE] -- PROGRAM ARGUMENT...\n",
          stderr);
    exit(125);
}

static int open_namespace(const char *path)
{
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

    if (path && fd < 0)
        fail("open the namespace", path);
    return fd;
}

static void join_cgroup(const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd < 0 || write(fd, "0", 1) != 1)
        fail("join the cgroup", path);
    close(fd);
}

/* A namespace has the cgroups of the process that makes it as its roots: a child that joins them, and ends. */
static void root_cgroups(const char *const *files, int n)
{
    int ready[2], fd;
    char path[64], byte;
    pid_t child;

    if (pipe2(ready, O_CLOEXEC) < 0 || (child = fork()) < 0)
        fail("start", "a child");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 0; i < n; i++)
            join_cgroup(files[i]);
        if (unshare(CLONE_NEWCGROUP) < 0)
            fail("make a cgroup namespace of", files[0]);
        if (write(ready[1], "", 1) != 1)
            fail("write to", "a pipe");
        pause();
        _exit(0);
    }
    close(ready[1]);
    snprintf(path, sizeof(path), "/proc/%d/ns/cgroup", child);
    if (read(ready[0], &byte, 1) != 1)
        exit(125); /* the child printed why */
    fd = open_namespace(path);
    if (setns(fd, CLONE_NEWCGROUP) < 0)
        fail("enter the cgroup namespace", path);
    close(fd);
    close(ready[0]);
    kill(child, SIGKILL);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
}

static unsigned long long find_start(void)
{
    char text[1024], *at;
    FILE *file = fopen("/proc/self/stat", "re");
    size_t size = file ? fread(text, 1, sizeof(text) - 1, file) : 0;

    if (!size)
        fail("read", "/proc/self/stat");
    fclose(file);
    text[size] = 0;
    at = strrchr(text, ')'); /* the end of field 2 */
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

/* Whole or not at all. */
static void write_number(const char *path)
{
    char made[4096];
    FILE *file;

    if (snprintf(made, sizeof(made), "%s.new", path) >= (int)sizeof(made))
        usage();
    file = fopen(made, "we");
    if (!file || fprintf(file, "%d %llu", getpid(), find_start()) < 0 || fclose(file) != 0 || rename(made, path) != 0)
        fail("write", path);
}

/* The kernel wants nanoseconds from 0 to a second, also of a negative offset. Returns the text behind the number. */
static const char *write_offset(FILE *file, int clock, const char *text)
{
    char *end;
    long long all, seconds, rest;

    errno = 0;
    all = strtoll(text, &end, 10);
    if (end == text || errno)
        usage();
    seconds = all / SECOND;
    rest = all % SECOND;
    if (rest < 0) {
        seconds--;
        rest += SECOND;
    }
    if (fprintf(file, "%d %lld %lld\n", clock, seconds, rest) < 0)
        fail("write", "/proc/self/timens_offsets");
    return end;
}

static void make_clocks(const char *offsets)
{
    static const char own[] = "/proc/self/ns/time_for_children";
    FILE *file;
    const char *rest;
    int fd;

    if (unshare(CLONE_NEWTIME) < 0) /* for children; below for this process, which has no thread */
        fail("make a time namespace of", offsets);
    file = fopen("/proc/self/timens_offsets", "we");
    if (!file)
        fail("open", "/proc/self/timens_offsets");
    rest = write_offset(file, CLOCK_MONOTONIC, offsets);
    if (*rest != ':')
        usage();
    rest = write_offset(file, CLOCK_BOOTTIME, rest + 1);
    if (*rest)
        usage();
    if (fclose(file) != 0) /* one write for both lines */
        fail("set the clocks", offsets);
    fd = open(own, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWTIME) < 0)
        fail("enter the time namespace", own);
    close(fd);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"net", required_argument, NULL, 'n'},
                                            {"mnt", required_argument, NULL, 'm'},
                                            {"time", required_argument, NULL, 't'},
                                            {"clocks", required_argument, NULL, 'k'},
                                            {"cgroup", required_argument, NULL, 'c'},
                                            {"cgroup-root", required_argument, NULL, 'r'},
                                            {"number", required_argument, NULL, 'p'},
                                            {0}};
    const char *net = NULL, *mnt = NULL, *time_path = NULL, *clocks = NULL, *number = NULL;
    const char *roots[ROOTS];
    int option, net_fd, mnt_fd, time_fd, n_roots = 0;

    while ((option = getopt_long(argc, argv, "+", options, NULL)) >= 0) {
        if (option == 'n')
            net = optarg;
        else if (option == 'm')
            mnt = optarg;
        else if (option == 't')
            time_path = optarg;
        else if (option == 'k')
            clocks = optarg;
        else if (option == 'c')
            join_cgroup(optarg);
        else if (option == 'r' && n_roots < ROOTS)
            roots[n_roots++] = optarg;
        else if (option == 'p')
            number = optarg;
        else
            usage();
    }
    if (optind == argc || (time_path && clocks))
        usage();
    if (n_roots)
        root_cgroups(roots, n_roots);
    if (number)
        write_number(number);
    net_fd = open_namespace(net);
    mnt_fd = open_namespace(mnt);
    time_fd = open_namespace(time_path);
    if (time_path && setns(time_fd, CLONE_NEWTIME) < 0)
        fail("enter the time namespace", time_path);
    if (clocks)
        make_clocks(clocks);
    if (net && setns(net_fd, CLONE_NEWNET) < 0)
        fail("enter the network namespace", net);
    if (mnt && setns(mnt_fd, CLONE_NEWNS) < 0)
        fail("enter the mount namespace", mnt);
    execvp(argv[optind], argv + optind);
    fail("run", argv[optind]);
}
