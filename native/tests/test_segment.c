/* Messages of segment.h between two processes: room, order, rubbish, and a rank that is moved at any moment. */
#include "segment.h"

#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TO = 3, FROM = 5, LARGE = 256 * 1024, SMALL = 4096, RENAMED = 1000 };

static char directory[] = "/dev/shm/wherry-test-XXXXXX";
static char host[64], own[64], other[64], path[256], more[256];
static struct segment_places places = {host, own}, senders = {host, other};
static char *buffer, *message;

static struct descriptor *put(struct outgoing *out, char content, uint64_t bytes)
{
    memset(message, content, bytes);
    return segment_put(&senders, out, TO, FROM, message, bytes);
}

static void check_take(const struct descriptor *descriptor, char content, bool expected)
{
    bool moved;

    CHECK(!segment_take(&places, TO, descriptor, buffer, &moved));
    CHECK(moved == expected);
    for (uint64_t i = 0; i < descriptor->bytes; i++)
        CHECK(buffer[i] == content);
}

static void nobody_receives_here(void)
{
    struct outgoing out = {0};
    struct descriptor *told;

    CHECK(!put(&out, 1, SMALL));
    CHECK(segment_begin(&senders, FROM, false));
    CHECK(!put(&out, 1, SMALL));
    CHECK(segment_begin(&places, TO, true));
    CHECK(!segment_begin(&places, TO, true)); /* two ranks of one number */
    CHECK(segment_is_here(&places, TO, true));
    told = put(&out, 1, SMALL);
    CHECK(told);
    check_take(told, 1, false);
}

static void messages_in_any_order(void)
{
    struct outgoing out = {0};
    struct descriptor *told[SEGMENT_SLOTS], *again;

    for (int i = 0; i < SEGMENT_SLOTS; i++) {
        told[i] = put(&out, (char)(i + 1), (uint64_t)(LARGE - i));
        CHECK(told[i]);
    }
    CHECK(!put(&out, 1, SMALL)); /* all wait */
    for (int i = SEGMENT_SLOTS - 1; i >= 0; i--)
        check_take(told[i], (char)(i + 1), false);
    again = put(&out, 7, SMALL);
    CHECK(again);
    check_take(again, 7, false);
}

static void name_file(char *name, const char *of, unsigned slot)
{
    snprintf(name, sizeof path, "%s/%s/%d.%u", host, of, FROM, slot);
}

static void rubbish_is_no_message(void)
{
    struct outgoing out = {0};
    struct descriptor *told = put(&out, 3, SMALL), forged;
    bool moved;

    CHECK(told);
    forged = *told;
    forged.slot = SEGMENT_SLOTS;
    CHECK(segment_take(&places, TO, &forged, buffer, &moved) == EBADMSG);
    forged = *told;
    forged.bytes++;
    CHECK(segment_take(&places, TO, &forged, buffer, &moved) == ENOENT);
    forged = *told;
    forged.serial++;
    CHECK(segment_take(&places, TO, &forged, buffer, &moved) == ENOENT);
    name_file(path, "3", told->slot);
    CHECK(!truncate(path, 1000));
    CHECK(segment_take(&places, TO, told, buffer, &moved) == EBADMSG);
    CHECK(!unlink(path));
    CHECK(!symlink("/dev/zero", path));
    CHECK(segment_take(&places, TO, told, buffer, &moved) == ENOENT);
    CHECK(!put(&out, 3, SMALL) || out.newest != told->slot); /* a link is not followed */
    unlink(path);
}

/*
 * As a move does: waiting messages are among the node's own files then, and there is no gate until the rank makes one.
 */
static void a_message_that_was_taken_along(void)
{
    struct outgoing out = {0};
    struct descriptor *told = put(&out, 4, LARGE), *next;

    CHECK(told);
    name_file(path, "3", told->slot);
    snprintf(more, sizeof more, "%s.%d.%d.%llu", own, TO, FROM, (unsigned long long)told->serial);
    CHECK(!rename(path, more));
    snprintf(path, sizeof path, "%s.host", own);
    CHECK(!unlink(path));
    CHECK(!segment_is_here(&places, TO, true));
    check_take(told, 4, true);
    CHECK(access(more, F_OK));
    segment_return(&places, TO, true);
    CHECK(segment_is_here(&places, TO, true));
    next = put(&out, 5, LARGE);
    CHECK(next && next != told); /* as the sender must assume, the library may still send the other one */
    check_take(next, 5, false);
}

/* How many messages wait in a directory; the files are removed. */
static int waiting(int number)
{
    struct segment_head head;
    char of[32];
    int found = 0;

    snprintf(of, sizeof of, "gone.%d", number);
    for (unsigned slot = 0; slot < SEGMENT_SLOTS; slot++) {
        int fd;

        name_file(more, of, slot);
        fd = open(more, O_RDONLY);
        if (fd < 0)
            continue;
        found += read(fd, &head, sizeof head) == sizeof head && head.serial;
        close(fd);
        unlink(more);
    }
    return found;
}

/* The receiver's directory is renamed and looked through while another process puts messages: all that are reported as
 * sent are there, plus one message at most. */
static void a_directory_that_is_renamed_at_any_moment(void)
{
    struct outgoing out = {0};
    struct descriptor *told;
    int pipes[2], sent = 0, found = 0;
    uint64_t serial;
    pid_t child;

    CHECK(!pipe(pipes));
    child = fork();
    CHECK(child >= 0);
    if (!child) {
        for (;;) {
            told = segment_put(&senders, &out, TO, FROM, message, SMALL);
            if (told)
                CHECK(write(pipes[1], &told->serial, sizeof serial) == sizeof serial);
            else
                sched_yield();
        }
    }
    close(pipes[1]);
    snprintf(path, sizeof path, "%s/%d", host, TO);
    for (int i = 0; i < RENAMED; i++) {
        snprintf(more, sizeof more, "%s/gone.%d", host, i);
        mkdir(path, 0700);
        usleep((useconds_t)(i % 100));
        CHECK(!rename(path, more));
        found += waiting(i);
    }
    kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child);
    while (read(pipes[0], &serial, sizeof serial) == sizeof serial)
        sent++;
    for (int i = 0; i < RENAMED; i++) {
        waiting(i); /* a file that was made meanwhile */
        snprintf(more, sizeof more, "%s/gone.%d", host, i);
        CHECK(!rmdir(more));
    }
    CHECK(sent > 0);
    CHECK(found >= sent);
    CHECK(found <= sent + RENAMED);
    CHECK(!mkdir(path, 0700));
}

static void nothing_is_left(void)
{
    segment_remove(&places, TO);
    segment_remove(&senders, FROM);
    CHECK(!rmdir(directory)); /* so it is empty */
}

int main(void)
{
    CHECK(mkdtemp(directory));
    snprintf(host, sizeof host, "%s/host", directory);
    snprintf(own, sizeof own, "%s/a", directory);
    snprintf(other, sizeof other, "%s/b", directory);
    buffer = calloc(1, LARGE);
    message = calloc(1, LARGE);
    CHECK(buffer && message);
    nobody_receives_here();
    messages_in_any_order();
    rubbish_is_no_message();
    a_message_that_was_taken_along();
    a_directory_that_is_renamed_at_any_moment();
    nothing_is_left();
    return 0;
}
