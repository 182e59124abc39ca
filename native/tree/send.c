/*
 * The source's side of a node's files.
 *
 *   wherry-tree send DIRECTORY FD [disk]
 *
 * FD is a connected socket to `wherry-tree receive` (wire.h). It is led by lines on standard input, each answered by one
 * on standard output:
 *
 *                 <--- ready
 *   round --->    <--- round N SENT_BYTES INODES MILLISECONDS   the destination has all found in this pass
 *   last  --->    <--- last N SENT_BYTES INODES MILLISECONDS    the node is frozen; the destination has all its files: exit 0
 *   all   --->    <--- all N SENT_BYTES INODES MILLISECONDS     the same, of a disk whose times of change are not trusted
 *   EOF   --->    exit 0
 *
 * Exit 3: the connection is lost; 1: anything else, with the reason.
 */
#include "send.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "commands.h"
#include "record.h"
#include "source.h"

static double milliseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* The end of a pass, with the sum of all records if it was the last one. */
static int end_pass(struct source *source)
{
    struct page_sum all = {0};
    uint8_t payload[sizeof(all)];
    uint64_t count = 0;

    if (!source->is_last)
        return output_put(&source->output, 'R', source->pass, 0, NULL, 0);
    for (size_t i = 0; i < source->inodes.count; i++) {
        const struct inode *inode = source->inodes.list[i];

        record_add(&all, record_of_inode(inode->number, inode->meta.data, inode->meta.count, inode->size, &inode->sums));
        for (size_t j = 0; j < inode->known.count; j++)
            record_add(&all, record_of_name(inode->number, inode->known.list[j].inode->number,
                                            name_text(&inode->known, &inode->known.list[j])));
        count += 1 + inode->known.count;
    }
    wire_put_number(payload, all.low);
    wire_put_number(payload + sizeof(all.low), all.high);
    return output_put(&source->output, 'E', source->pass, count, payload, sizeof(payload));
}

/* The pages of a file on a disk are clean from here on: a write while the node runs changes its time. */
static int begin_pass(struct source *source)
{
    struct timespec monotonic, now;
    int64_t ahead;

    if (!source->is_on_disk)
        return 0;
    clock_gettime(CLOCK_MONOTONIC, &monotonic);
    clock_gettime(CLOCK_REALTIME, &now);
    ahead = nanoseconds(now) - nanoseconds(monotonic);
    if (ahead - source->ahead > COARSE_NS / 2 || source->ahead - ahead > COARSE_NS / 2)
        source->compares_all = true; /* the wall clock was set since the last pass */
    source->ahead = ahead;
    source->began = nanoseconds(now);
    return !source->is_last && syncfs(source->directory) ? -errno : 0;
}

static int send_pass(struct source *source)
{
    int error = begin_pass(source);

    if (!error)
        error = look_at_all(source);
    if (!error)
        error = send_structure(source);
    if (!error)
        error = send_contents(source);
    if (!error)
        error = end_pass(source);
    return error ? error : output_await(&source->output, source->pass);
}

/* Inodes that no move carries (source.h, inodes.h, meta.h, wire.h). */
static const struct {
    int error;
    const char *text;
} LIMITS[] = {
    {-ENAMETOOLONG, "directories are nested more than 1000 deep; remove those (wherry exec NODE -- ...), then move the node again"},
    {-EOVERFLOW, "a directory has more than 16777216 names; remove some, then move the node again"},
    {-E2BIG, "a file has more than 1 MiB of extended attributes; remove some (setfattr -x), then move the node again"},
    {-EXFULL, "more than 268435455 files and directories came while it moved; move the node with --mode stop"},
};

static int report_send_error(const struct source *source, int error)
{
    if (source->output.error && source->output.error != -ENOMEM)
        return tree_failed("the connection to the destination is lost", source->output.error), CONNECTION_LOST;
    if (error == -ESTALE)
        return tree_failed("the files change, though the node is frozen", error);
    for (size_t i = 0; i < sizeof(LIMITS) / sizeof(LIMITS[0]); i++)
        if (error == LIMITS[i].error) {
            fprintf(stderr, "wherry-tree: %s\n", LIMITS[i].text);
            return FAILED;
        }
    return tree_failed("the files cannot be sent", error);
}

static int answer(struct source *source, const char *word)
{
    double began = milliseconds();
    uint64_t before = source->output.bytes;
    int error;

    source->pass++;
    source->compares_all = !strcmp(word, "all");
    source->is_last = source->compares_all || !strcmp(word, "last");
    if ((error = send_pass(source)))
        return report_send_error(source, error);
    printf("%s %" PRIu64 " %" PRIu64 " %zu %.3f\n", word, source->pass, source->output.bytes - before,
           source->inodes.count, milliseconds() - began);
    return 0;
}

static int command_loop(struct source *source)
{
    char line[64];
    int result = 0;

    puts("ready");
    while (!result && !source->is_last && !fflush(stdout) && fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "round") || !strcmp(line, "last") || !strcmp(line, "all"))
            result = answer(source, line);
        else
            result = tree_failed("standard input", -EINVAL);
    }
    return result;
}

int tree_send(const char *directory, const char *socket, bool is_on_disk)
{
    static struct source source;
    struct rlimit files = {4 * DEEPEST, 4 * DEEPEST};
    int error, end = tree_descriptor(socket);

    signal(SIGPIPE, SIG_IGN);
    setrlimit(RLIMIT_NOFILE, &files); /* directories in each other are open at once, and one need not be so deep */
    if (end < 0)
        return tree_failed(socket, -EBADF);
    if ((source.directory = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        return tree_failed(directory, -errno);
    source.is_on_disk = is_on_disk;
    output_open(&source.output, end);
    if ((error = contents_start(&source)))
        return tree_failed("threads", error);
    error = command_loop(&source);
    fflush(NULL);
    _exit(error); /* threads wait, or still send */
}
