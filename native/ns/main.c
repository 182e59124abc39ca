/*
 * wherry-ns: runs a program in given namespaces and cgroups.
 *
 *   wherry-ns [--net PATH] [--mnt PATH] [--time PATH | --clocks MONOTONIC:BOOTTIME] [--cgroup FILE]... [--number FILE]
 *             -- PROGRAM ARGUMENT...
 *
 * --time enters a time namespace; --clocks makes one, whose clocks are ahead of the host's by so many nanoseconds
 * (time_namespaces(7)), and enters it.
 * Every FILE of a cgroup is a cgroup.procs (or tasks) file of the host; they are written before the namespaces are
 * entered, since another mount namespace may not have them. The last FILE gets the program's process id and when it
 * started (clock ticks, proc(5), field 22), before the program begins: so whoever started it may die at any time, and
 * it is found again. Exit code 125: not even started; else the program's own.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80 /* linux/sched.h, since Linux 5.6 */
#endif
#define SECOND 1000000000LL

static _Noreturn void fail(const char *what, const char *object)
{
    fprintf(stderr, "wherry-ns: cannot %s %s: %s\n", what, object, strerror(errno));
    exit(125);
}

static _Noreturn void usage(void)
{
    fputs("usage: wherry-ns [--net PATH] [--mnt PATH] [--time PATH | --clocks MONOTONIC:BOOTTIME] [--cgroup FILE]...\n"
          "       [--number FILE] -- PROGRAM ARGUMENT...\n",
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

/* The kernel wants nanoseconds from 0 to a second, also of what is negative. Returns what follows the number. */
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
                                            {"number", required_argument, NULL, 'p'},
                                            {0}};
    const char *net = NULL, *mnt = NULL, *time_path = NULL, *clocks = NULL, *number = NULL;
    int option, net_fd, mnt_fd, time_fd;

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
        else if (option == 'p')
            number = optarg;
        else
            usage();
    }
    if (optind == argc || (time_path && clocks))
        usage();
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
