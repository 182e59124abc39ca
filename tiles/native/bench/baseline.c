/*
 * wherry-baseline: programs to compare the tiles with, on the same machine in the same minute. Prints one JSON line.
 *
 *   wherry-baseline memcpy BYTES TIMES   median of copies between two parts of one shared memory file, both warm
 *   wherry-baseline wire NETNS NETNS ADDRESS BYTES TIMES
 *                                      median of sends over a TCP connection, already used, from one network namespace
 *                                      (a file) to that address in another: until all has been received. Needs root
 *   wherry-baseline threads COUNT TIMES [STACK]
 *                                      pthreads: medians of creating COUNT, and of joining them. Without STACK, in
 *                                      bytes, each has 8 MiB, of which the C library keeps five at most for reuse: the
 *                                      others are mapped and unmapped each time
 *   wherry-baseline stand FILE BYTES     an ordinary process: writes all its memory again and again, and keeps in FILE
 *                                      (mapped: two 64-bit words) its rounds and the longest time between two looks
 *                                      at the clock, until SIGTERM
 *   wherry-baseline count PID            counts branches and cache misses of a process in user mode until its standard
 *                                      input ends, as far as the machine counts them; prints when it counts none
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MOST = 64, TASKS_MOST = 256, STRIDE = 4096 };

static int64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int compare(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;

    return (a > b) - (a < b);
}

static int64_t median(int64_t *times, size_t count)
{
    qsort(times, count, sizeof(*times), compare);
    return times[count / 2];
}

static void *allocate(size_t bytes)
{
    void *at = calloc(1, bytes);

    if (!at) {
        perror("wherry-baseline");
        exit(1);
    }
    return at;
}

static int copy(size_t bytes, size_t times)
{
    int64_t *took = allocate(times * sizeof(*took));
    int fd = memfd_create("beside", MFD_CLOEXEC);
    uint8_t *at = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, (off_t)(2 * bytes)) == 0)
        at = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (at == MAP_FAILED) {
        perror("wherry-baseline");
        return 1;
    }
    for (size_t i = 0; i < times; i++) {
        int64_t begin;

        memset(at, (int)i, bytes);
        begin = now();
        memcpy(at + bytes, at, bytes);
        took[i] = now() - begin;
        __asm__ volatile("" ::"r"(at) : "memory");
    }
    printf("{\"bytes\": %zu, \"nanoseconds\": %ld}\n", bytes, (long)median(took, times));
    return 0;
}

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    perror(what);
    exit(1);
}

static void enter(const char *netns)
{
    int fd = open(netns, O_RDONLY | O_CLOEXEC);

    require(fd >= 0 && setns(fd, CLONE_NEWNET) == 0, netns);
    close(fd);
}

struct receiver {
    int fd;
    size_t bytes, times;
    uint8_t *into;
    int64_t *ended;
};

/* Answers with a byte when all of one send has come. */
static void *receive(void *argument)
{
    const struct receiver *receiver = argument;

    for (size_t i = 0; i < receiver->times; i++) {
        ssize_t count = recv(receiver->fd, receiver->into, receiver->bytes, MSG_WAITALL);

        receiver->ended[i] = now();
        require(count == (ssize_t)receiver->bytes && send(receiver->fd, "", 1, MSG_NOSIGNAL) == 1, "wherry-baseline");
    }
    return NULL;
}

static int wire(const char *from, const char *to, const char *where, size_t bytes, size_t times)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct receiver receiver = {.bytes = bytes, .times = times + 1, .into = allocate(bytes)};
    int64_t *took = allocate(receiver.times * sizeof(*took));
    socklen_t length = sizeof(address);
    uint8_t *buffer = allocate(bytes), answer;
    int listener, sender, yes = 1;
    pthread_t thread;

    receiver.ended = allocate(receiver.times * sizeof(*receiver.ended));
    require(inet_pton(AF_INET, where, &address.sin_addr) == 1, where);
    enter(to);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    require(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(listener, 1) == 0 &&
                getsockname(listener, (struct sockaddr *)&address, &length) == 0, where);
    enter(from);
    sender = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    require(connect(sender, (struct sockaddr *)&address, sizeof(address)) == 0, where);
    receiver.fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    require(receiver.fd >= 0, where);
    setsockopt(sender, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    setsockopt(receiver.fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    require(pthread_create(&thread, NULL, receive, &receiver) == 0, "wherry-baseline");
    for (size_t i = 0; i < receiver.times; i++) { /* the first is not counted: TCP begins slowly */
        memset(buffer, (int)i, bytes);
        took[i] = now();
        for (size_t sent = 0; sent < bytes;) {
            ssize_t count = send(sender, buffer + sent, bytes - sent, MSG_NOSIGNAL);

            require(count > 0, "wherry-baseline");
            sent += (size_t)count;
        }
        require(recv(sender, &answer, 1, 0) == 1, "wherry-baseline");
    }
    pthread_join(thread, NULL);
    for (size_t i = 0; i < receiver.times; i++)
        took[i] = receiver.ended[i] - took[i];
    printf("{\"bytes\": %zu, \"nanoseconds\": %ld}\n", bytes, (long)median(took + 1, times));
    return 0;
}

static void *nothing(void *argument)
{
    return argument;
}

static int threads(size_t count, size_t times, size_t stack)
{
    int64_t *create = allocate(times * sizeof(*create)), *join = allocate(times * sizeof(*join));
    pthread_t all[THREADS_MOST];
    pthread_attr_t attr;
    int error = pthread_attr_init(&attr);

    if (error == 0 && stack)
        error = pthread_attr_setstacksize(&attr, stack);
    if (error) {
        fprintf(stderr, "wherry-baseline: no stacks of %zu bytes: %s\n", stack, strerror(error));
        return 1;
    }
    for (size_t i = 0; i < times && count <= THREADS_MOST; i++) {
        int64_t begin = now();

        for (size_t t = 0; t < count; t++)
            if (pthread_create(&all[t], &attr, nothing, NULL) != 0)
                return 1;
        create[i] = now() - begin;
        begin = now();
        for (size_t t = 0; t < count; t++)
            pthread_join(all[t], NULL);
        join[i] = now() - begin;
    }
    pthread_attr_getstacksize(&attr, &stack);
    printf("{\"threads\": %zu, \"stack\": %zu, \"create_ns\": %ld, \"join_ns\": %ld}\n", count, stack,
           (long)median(create, times), (long)median(join, times));
    return 0;
}

static int stand(const char *path, size_t bytes)
{
    volatile uint8_t *memory = allocate(bytes);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    volatile int64_t *told = MAP_FAILED;
    int64_t before;

    if (fd >= 0 && ftruncate(fd, STRIDE) == 0)
        told = mmap(NULL, STRIDE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (told == MAP_FAILED) {
        perror(path);
        return 1;
    }
    close(fd);
    before = now();
    for (size_t at = 0;; at = (at + STRIDE) % bytes) {
        int64_t time = now();

        if (time - before > told[1])
            told[1] = time - before;
        before = time;
        memory[at]++;
        if (at + STRIDE >= bytes)
            told[0]++;
    }
}

struct event {
    const char *name;
    uint32_t type;
    uint64_t config;
};

#define CACHE(which) ((which) | PERF_COUNT_HW_CACHE_OP_READ << 8 | PERF_COUNT_HW_CACHE_RESULT_MISS << 16)

static const struct event events[] = {
    {"branches", PERF_TYPE_HARDWARE, PERF_COUNT_HW_BRANCH_INSTRUCTIONS},
    {"data_misses", PERF_TYPE_HW_CACHE, CACHE(PERF_COUNT_HW_CACHE_L1D)},
    {"instruction_misses", PERF_TYPE_HW_CACHE, CACHE(PERF_COUNT_HW_CACHE_L1I)},
};

/* One descriptor for each thread that the process has now. Returns their count, or negative errno. */
static int open_counters(const char *pid, const struct event *event, int fds[TASKS_MOST])
{
    struct perf_event_attr attr = {
        .type = event->type, .size = sizeof(attr), .config = event->config, .exclude_kernel = 1, .exclude_hv = 1,
    };
    char path[64];
    struct dirent *entry;
    int count = 0;
    DIR *tasks;

    snprintf(path, sizeof(path), "/proc/%.20s/task", pid);
    tasks = opendir(path);
    if (!tasks)
        return -errno;
    while ((entry = readdir(tasks)) && count < TASKS_MOST) {
        if (entry->d_name[0] == '.')
            continue;
        fds[count] = (int)syscall(SYS_perf_event_open, &attr, atoi(entry->d_name), -1, -1, PERF_FLAG_FD_CLOEXEC);
        if (fds[count] < 0) {
            count = -errno;
            break;
        }
        count++;
    }
    closedir(tasks);
    return count;
}

static int count(const char *pid)
{
    static int fds[sizeof(events) / sizeof(*events)][TASKS_MOST];
    int counts[sizeof(events) / sizeof(*events)], any = 0, said = 0;
    char byte;

    for (size_t i = 0; i < sizeof(events) / sizeof(*events); i++) {
        counts[i] = open_counters(pid, &events[i], fds[i]);
        any |= counts[i] >= 0;
    }
    if (!any) {
        printf("{\"counted\": false, \"why\": \"%s\"}\n", strerror(-counts[0]));
        return 0;
    }
    printf("{\"counted\": true}\n");
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    for (size_t i = 0; i < sizeof(events) / sizeof(*events); i++) {
        uint64_t sum = 0, one;

        for (int t = 0; t < counts[i]; t++)
            if (read(fds[i][t], &one, sizeof(one)) == sizeof(one))
                sum += one;
        if (counts[i] >= 0)
            printf("%s\"%s\": %lu", said++ ? ", " : "{", events[i].name, (unsigned long)sum);
    }
    printf("}\n");
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    size_t first = argc > 2 ? strtoul(argv[2], NULL, 10) : 0, second = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;
    size_t third = argc > 4 ? strtoul(argv[4], NULL, 10) : 0;

    if (strcmp(what, "memcpy") == 0 && first && second)
        return copy(first, second);
    if (strcmp(what, "wire") == 0 && argc == 7 && strtoul(argv[5], NULL, 10) && strtoul(argv[6], NULL, 10))
        return wire(argv[2], argv[3], argv[4], strtoul(argv[5], NULL, 10), strtoul(argv[6], NULL, 10));
    if (strcmp(what, "threads") == 0 && first && first <= THREADS_MOST && second)
        return threads(first, second, third);
    if (strcmp(what, "stand") == 0 && second >= STRIDE)
        return stand(argv[2], second);
    if (strcmp(what, "count") == 0 && first)
        return count(argv[2]);
    fprintf(stderr, "usage: wherry-baseline memcpy BYTES TIMES | wire NETNS NETNS ADDRESS BYTES TIMES | "
                    "threads COUNT TIMES [STACK] | stand FILE BYTES | count PID\n");
    return 2;
}
