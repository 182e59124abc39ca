/*
 * wherry-ns: runs a program in given namespaces and cgroups.
 *
 *   wherry-ns [--net PATH] [--mnt PATH] [--cgroup FILE]... -- PROGRAM ARGUMENT...
 *
 * Every FILE is a cgroup.procs (or tasks) file of the host; they are written before the namespaces are entered, since
 * another mount namespace may not have them. Exit code 125: not even started; else the program's own.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Noreturn void fail(const char *what, const char *object)
{
    fprintf(stderr, "wherry-ns: cannot %s %s: %s\n", what, object, strerror(errno));
    exit(125);
}

static _Noreturn void usage(void)
{
    fputs("usage: wherry-ns [--net PATH] [--mnt PATH] [--cgroup FILE]... -- PROGRAM ARGUMENT...\n", stderr);
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

int main(int argc, char **argv)
{
    static const struct option options[] = {{"net", required_argument, NULL, 'n'},
                                            {"mnt", required_argument, NULL, 'm'},
                                            {"cgroup", required_argument, NULL, 'c'},
                                            {0}};
    const char *net = NULL, *mnt = NULL;
    int option, net_fd, mnt_fd;

    while ((option = getopt_long(argc, argv, "+", options, NULL)) >= 0) {
        if (option == 'n')
            net = optarg;
        else if (option == 'm')
            mnt = optarg;
        else if (option == 'c')
            join_cgroup(optarg);
        else
            usage();
    }
    if (optind == argc)
        usage();
    net_fd = open_namespace(net);
    mnt_fd = open_namespace(mnt);
    if (net && setns(net_fd, CLONE_NEWNET) < 0)
        fail("enter the network namespace", net);
    if (mnt && setns(mnt_fd, CLONE_NEWNS) < 0)
        fail("enter the mount namespace", mnt);
    execvp(argv[optind], argv + optind);
    fail("run", argv[optind]);
}
