/*
 * Writer of the job's files (see job_files.h). Invariants: a name appears only with its whole content, which is on the
 * disk by then; room for `exit` is taken before the program starts.
 */
#include "job_files.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "wherry/process.h"

enum {
    EXIT_ROOM = 160, /* bytes; no exit file is longer */
    RETRY_MS = 200,
};

static uint64_t real_time_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/*
 * Writes NAME.new; its old contents are overwritten in place, which needs no room, and then cut off. With `named`
 * it gets its name, when it is on the disk.
 */
static int write_file(const struct job_files *files, const char *name, const char *text, size_t length, bool named)
{
    char fresh[32];
    int fd, error;

    snprintf(fresh, sizeof fresh, "%s.new", name);
    fd = openat(files->directory, fresh, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    error = process_write_all(fd, text, length);
    if (error == 0 && named && (ftruncate(fd, (off_t)length) < 0 || fsync(fd) < 0))
        error = -errno;
    close(fd);
    if (error == 0 && named && renameat(files->directory, fresh, files->directory, name) < 0)
        error = -errno;
    return error;
}

int job_files_open(struct job_files *files, const char *directory, uint64_t limit, int stream)
{
    char blanks[EXIT_ROOM];

    memset(files, 0, sizeof *files);
    files->limit = limit;
    files->directory = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (files->directory < 0)
        return -errno;
    files->stream = stream >= 0;
    files->output = files->stream
                        ? fcntl(stream, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)
                        : openat(files->directory, "output", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (files->output < 0 || (files->stream && fcntl(files->output, F_SETFL, O_NONBLOCK) < 0))
        return -errno;
    memset(blanks, ' ', sizeof blanks);
    return write_file(files, "exit", blanks, sizeof blanks, false);
}

int job_files_write_pid(const struct job_files *files)
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
    return write_file(files, "pid", text, (size_t)length, true);
}

static void fill_header(uint8_t stream, uint8_t *frame, size_t length)
{
    uint64_t now = real_time_ns();

    frame[0] = stream;
    for (int i = 0; i < 8; i++)
        frame[1 + i] = (uint8_t)(now >> (56 - 8 * i));
    for (int i = 0; i < 4; i++)
        frame[9 + i] = (uint8_t)((uint32_t)length >> (24 - 8 * i));
}

void job_files_flush(struct job_files *files)
{
    while (files->rest_length && files->output >= 0) {
        ssize_t count = write(files->output, files->rest, files->rest_length);

        if (count >= 0) {
            files->rest += count;
            files->rest_length -= (size_t)count;
        } else if (errno == EAGAIN) {
            return;
        } else if (errno != EINTR) {
            close(files->output);
            files->output = -1;
        }
    }
    files->rest_length = 0;
}

/* Returns false when the file system did not take all of it; then nothing of it is there. */
static bool append(struct job_files *files, uint8_t stream, uint8_t *frame, size_t length)
{
    off_t start = lseek(files->output, 0, SEEK_END);

    fill_header(stream, frame, length);
    if (process_write_all(files->output, frame, JOB_OUTPUT_HEADER + length) == 0)
        return true;
    (void)!ftruncate(files->output, start); /* half a frame would make all that follows unreadable */
    return false;
}

void job_files_append(struct job_files *files, uint8_t stream, uint8_t *frame, size_t length)
{
    uint8_t line[JOB_OUTPUT_HEADER + 160];
    off_t kept;
    bool fits;

    if (files->stream) {
        fill_header(stream, frame, length);
        files->rest = frame;
        files->rest_length = JOB_OUTPUT_HEADER + length;
        job_files_flush(files);
        return;
    }
    kept = lseek(files->output, 0, SEEK_END);
    fits = !files->full && (uint64_t)kept + JOB_OUTPUT_HEADER + length <= files->limit;
    if (!files->full && !fits) {
        int count = snprintf((char *)line + JOB_OUTPUT_HEADER, sizeof line - JOB_OUTPUT_HEADER,
                             "\nwherry: this job has written %llu MiB, what follows is not kept\n",
                             (unsigned long long)kept >> 20);

        files->full = append(files, 2, line, (size_t)count);
    }
    if (!fits || !append(files, stream, frame, length))
        files->lost += length;
}

int job_files_write_exit(const struct job_files *files, int status, int stopped)
{
    char text[EXIT_ROOM], how[32];
    int length, error;

    process_describe_status(status, how, sizeof how);
    length = snprintf(text, sizeof text, "%s\nended %llu\n", how, (unsigned long long)real_time_ns());
    if (stopped)
        length += snprintf(text + length, sizeof text - (size_t)length, "stopped %d\n", stopped);
    if (files->lost)
        length += snprintf(text + length, sizeof text - (size_t)length, "lost %llu\n",
                           (unsigned long long)files->lost);
    while ((error = write_file(files, "exit", text, (size_t)length, true)) == -ENOSPC || error == -EDQUOT)
        poll(NULL, 0, RETRY_MS); /* the file system gave no room for the change of the reserved blocks */
    return error;
}
