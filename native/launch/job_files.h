/*
 * The files that a job leaves in its directory:
 *
 *   pid      "PID STARTTIME"   of the holder; STARTTIME is field 22 of /proc/PID/stat (clock ticks since boot)
 *   output   frames, appended with one write each:
 *
 *            0        1                       9                13
 *            +--------+-----------------------+----------------+-- - -+
 *            | stream | CLOCK_REALTIME ns u64 | length u32 (BE) | bytes |
 *            +--------+-----------------------+----------------+-- - -+
 *            stream: 1 standard output, 2 standard error; a reader may meet a frame that is not whole yet. A job
 *            whose output is a stream has no such file: its frames go to a pipe, and are kept by nobody
 *   exit     appears at once (rename) when the job is over: "exit N" or "signal N", then "ended NS" (CLOCK_REALTIME),
 *            "stopped N" when signal N was passed to the program before it ended, and "lost BYTES" when some of the
 *            output is not kept: the file system did not take it, or there is more than the limit. Then the last frame,
 *            on standard error, is a line about that. Until then its room is kept by `exit.new`: blanks
 */
#ifndef WHERRY_LAUNCH_JOB_FILES_H
#define WHERRY_LAUNCH_JOB_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct job_files {
    int directory; /* descriptor */
    int output;    /* -1: the reader of the stream is gone */
    bool stream;
    const uint8_t *rest; /* of a frame that the stream did not take yet, in its writer's memory */
    size_t rest_length;
    uint64_t lost;  /* bytes */
    uint64_t limit; /* of the output file, but for the line that reports that it is reached */
    bool full;
};

enum { JOB_OUTPUT_HEADER = 13, JOB_OUTPUT_LIMIT = 1 << 30 };

/*
 * Opens the job's directory and its output file, of which `limit` bytes are kept, and takes the room of `exit`. `stream`
 * is the pipe for the output in place of the file, -1 if none. Returns 0 or negative errno.
 */
int job_files_open(struct job_files *files, const char *directory, uint64_t limit, int stream);
/* Writes `pid` for this process. Returns 0 or negative errno. */
int job_files_write_pid(const struct job_files *files);
/*
 * Appends one frame; the first JOB_OUTPUT_HEADER bytes of `frame` are filled in here. A stream may leave a rest in
 * `frame`, and takes no other frame before that is flushed.
 */
void job_files_append(struct job_files *files, uint8_t stream, uint8_t *frame, size_t length);
/* Writes as much of the rest as the stream takes; when its reader is gone, nothing is left of it. */
void job_files_flush(struct job_files *files);
/*
 * Writes `exit`; `stopped` is the signal that was passed to the program, 0 if none. Waits while the file system has no
 * room all the same. Returns 0 or negative errno.
 */
int job_files_write_exit(const struct job_files *files, int status, int stopped);

#endif
