/* Writer of the job's files (see record.h). A name appears only with its whole content. */
#include "record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "wherry/process.h"

static uint64_t real_time_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int record_open(struct record *record, const char *directory)
{
    memset(record, 0, sizeof *record);
    record->directory = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (record->directory < 0)
        return -errno;
    record->output = openat(record->directory, "output", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    return record->output < 0 ? -errno : 0;
}

static int replace_file(const struct record *record, const char *name, const char *text, size_t length)
{
    char fresh[32];
    int fd, error;

    snprintf(fresh, sizeof fresh, "%s.new", name);
    fd = openat(record->directory, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    error = process_write_all(fd, text, length);
    close(fd);
    if (error == 0 && renameat(record->directory, fresh, record->directory, name) < 0)
        error = -errno;
    return error;
}

int record_write_pid(const struct record *record)
{
    char stat[1024], text[64], *after;
    unsigned long long start;
    ssize_t count;
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC), length;

    if (fd < 0)
        return -errno;
    count = read(fd, stat, sizeof stat - 1);
    close(fd);
    if (count <= 0)
        return -EIO;
    stat[count] = 0;
    after = strrchr(stat, ')');
    /* Fields 3 to 21 follow the name, the 22nd is the start time. */
    if (!after || sscanf(after + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                         &start) != 1)
        return -EIO;
    length = snprintf(text, sizeof text, "%d %llu\n", (int)getpid(), start);
    return replace_file(record, "pid", text, (size_t)length);
}

void record_append(struct record *record, uint8_t stream, uint8_t *frame, size_t length)
{
    uint64_t now = real_time_ns();
    off_t start = lseek(record->output, 0, SEEK_END);

    frame[0] = stream;
    for (int i = 0; i < 8; i++)
        frame[1 + i] = (uint8_t)(now >> (56 - 8 * i));
    for (int i = 0; i < 4; i++)
        frame[9 + i] = (uint8_t)((uint32_t)length >> (24 - 8 * i));
    if (process_write_all(record->output, frame, RECORD_HEADER + length) < 0) {
        record->lost += length;
        (void)!ftruncate(record->output, start); /* half a frame would make all that follows unreadable */
    }
}

int record_write_exit(const struct record *record, int status, int stopped)
{
    char text[160], how[32];
    int length;

    process_describe_status(status, how, sizeof how);
    length = snprintf(text, sizeof text, "%s\nended %llu\n", how, (unsigned long long)real_time_ns());
    if (stopped)
        length += snprintf(text + length, sizeof text - (size_t)length, "stopped %d\n", stopped);
    if (record->lost)
        length += snprintf(text + length, sizeof text - (size_t)length, "lost %llu\n",
                           (unsigned long long)record->lost);
    return replace_file(record, "exit", text, (size_t)length);
}
