/*
 * wherry-rsh: the rsh that MPI launchers start their remote daemons with.
 *
 *   WHERRY_JOB=FILE wherry-rsh [-n] [-x] [-l USER] HOST COMMAND...
 *   WHERRY_JOB=FILE wherry-rsh --exec HOST PROGRAM ARGUMENT...
 *   wherry-rsh --environment PROGRAM ARGUMENT...
 *
 * Runs COMMAND (joined by single blanks, given to /bin/sh -c, as rsh does) or PROGRAM (as it is) on the node HOST of the
 * job, as the job's user, with the environment of the job file only; relays the streams; ends with the command's exit
 * code (128 + signal). 255: it could not be run or the connection was lost, with one line on the standard error.
 *
 * With --environment it becomes PROGRAM, here, with the variables that WHERRY_ENV_0, WHERRY_ENV_1, … hold as NAME=VALUE:
 * a shell drops variables with names it cannot use (exported functions of bash), and a launcher's daemon is started by
 * one. It sets the limits of WHERRY_LIMITS (wherry/inherited.h), where they are too narrow for such a daemon.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "io_forwarding.h"
#include "jobfile.h"
#include "wherry/handshake.h"
#include "wherry/inherited.h"
#include "wherry/number.h"
#include "wherry/process.h"

static _Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

static _Noreturn void fail(const char *format, ...)
{
    va_list arguments;
    char text[1024];

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "wherry-rsh: %s\n", text);
    exit(255);
}

static void append_bytes(struct buffer *buffer, const void *bytes, size_t count)
{
    if (buffer_reserve(buffer, count) < 0)
        fail("no memory for the command");
    buffer_append(buffer, bytes, count);
}

static void append_string(struct buffer *buffer, const char *text)
{
    append_bytes(buffer, text, strlen(text) + 1);
}

static void append_sealed(struct buffer *out, struct seal *seal, uint8_t type, const void *payload, size_t length)
{
    ssize_t size;

    if (buffer_reserve(out, WIRE_HEADER + length + WIRE_TAG) < 0)
        fail("no memory for the command");
    if (length)
        memcpy(buffer_tail(out) + WIRE_HEADER, payload, length);
    size = seal_close(seal, buffer_tail(out), type, (uint32_t)length);
    if (size < 0)
        fail("the session has had too many frames");
    out->count += (size_t)size;
}

/* The words of the command: of a shell that gets them joined, or of the program itself. */
static void append_command(struct buffer *request, char **words, bool shell)
{
    char count[16];
    int words_count = 0;

    while (words[words_count])
        words_count++;
    snprintf(count, sizeof count, "%d", shell ? 3 : words_count);
    append_string(request, count);
    if (shell) {
        append_string(request, "/bin/sh");
        append_string(request, "-c");
    }
    for (; *words; words++) {
        if (!shell) {
            append_string(request, *words);
            continue;
        }
        append_bytes(request, *words, strlen(*words));
        append_bytes(request, words[1] ? " " : "", 1);
    }
}

/* R of this command. */
static void queue_request(struct buffer *out, struct seal *seal, const struct jobfile *job, char **words, bool shell)
{
    struct buffer request = {0};

    append_string(&request, job->uid);
    append_string(&request, job->gid);
    append_string(&request, job->groups);
    append_string(&request, job->cwd);
    append_string(&request, job->inherited);
    append_command(&request, words, shell);
    for (size_t i = 0; i < job->environment_count; i++)
        append_string(&request, job->environment[i]);
    if (request.count > WIRE_REQUEST_MAX)
        fail("command and environment have %zu bytes, more than the %d that a node takes", request.count,
             WIRE_REQUEST_MAX);
    append_sealed(out, seal, 'R', buffer_head(&request), request.count);
    buffer_free(&request);
}

static int connect_node(const struct job_node *node)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int fd, yes = 1, idle = 60, interval = 30, count = 10; /* s, s, probes: outlasts the freeze of any move */
    uint64_t port;

    if (inet_pton(AF_INET, node->address, &address.sin_addr) != 1 ||
        number_parse(node->port, strlen(node->port), 65535, &port) < 0)
        fail("node %s has no usable address in the job file: %s %s", node->name, node->address, node->port);
    address.sin_port = htons((uint16_t)port);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        fail("cannot reach node %s at %s:%s: %s", node->name, node->address, node->port, strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

static _Noreturn void fail_lost(const struct job_node *node)
{
    fail("lost the connection to node %s (%s:%s)", node->name, node->address, node->port);
}

/* A frame of those before the session. Waits however long a move freezes the node. */
static void hear(int fd, const struct job_node *node, uint8_t bytes[WIRE_HEADER + WIRE_TEXT_MAX],
                 struct wire_frame *frame)
{
    size_t have = WIRE_HEADER, wanted;
    ssize_t size;

    if (recv(fd, bytes, have, MSG_WAITALL) != (ssize_t)have)
        fail_lost(node);
    size = wire_parse_frame(bytes, have, false, frame, &wanted);
    if (size == 0 && recv(fd, bytes + have, wanted - have, MSG_WAITALL) != (ssize_t)(wanted - have))
        fail_lost(node);
    if (size < 0)
        fail("the program at %s:%s is no agent of node %s", node->address, node->port, node->name);
    if (frame->type == 'F')
        fail("node %s: %.*s", node->name, (int)frame->length, (const char *)frame->payload);
}

/* The handshake of wherry/handshake.h. Ends the program unless the node has proved that it has its key. */
static void prove_both(int fd, const struct job_node *node, struct seals *seals)
{
    uint8_t bytes[WIRE_HEADER + WIRE_TEXT_MAX], answer[WIRE_HEADER + WIRE_ANSWER], expected[WIRE_PROOF];
    struct wire_frame frame;
    int error;

    hear(fd, node, bytes, &frame);
    error = handshake_answer((const uint8_t *)node->key, &frame, answer + WIRE_HEADER, expected, seals);
    if (error == -EPROTONOSUPPORT)
        fail("the agent of node %s speaks another version of its protocol than %d: wherry down, then wherry up",
             node->name, WIRE_VERSION);
    if (error < 0)
        fail("the program at %s:%s is no agent of node %s", node->address, node->port, node->name);
    wire_put_header(answer, 'H', WIRE_ANSWER);
    if (send(fd, answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer)
        fail_lost(node);
    hear(fd, node, bytes, &frame);
    if (handshake_verify_agent(expected, &frame) < 0)
        fail("the program at %s:%s does not have the key of node %s", node->address, node->port, node->name);
}

/* Skips rsh's options; options that change nothing here are taken silently. */
static char **skip_options(char **words, bool *with_input)
{
    for (; *words && (*words)[0] == '-'; words++) {
        if (strcmp(*words, "-n") == 0)
            *with_input = false;
        else if (strcmp(*words, "-l") == 0 && words[1])
            words++;
    }
    return words;
}

/* Removes this program from its command line as Open MPI passes it on (MPI_INFO_ENV). */
static void correct_command_line(const char *program)
{
    const char *arguments = getenv("OMPI_ARGV");
    size_t ours = strlen("--environment ") + strlen(program);

    if (!arguments || strlen(arguments) < ours)
        return;
    setenv("OMPI_COMMAND", program, 1);
    if (arguments[ours] == ' ')
        setenv("OMPI_ARGV", arguments + ours + 1, 1);
    else
        unsetenv("OMPI_ARGV");
}

static void set_limits(void)
{
    const char *text = getenv("WHERRY_LIMITS");
    struct inherited inherited;

    if (!text)
        return;
    if (inherited_parse(text, &inherited) < 0)
        fail("cannot use the limits %s", text);
    unsetenv("WHERRY_LIMITS");
    inherited_apply(&inherited);
}

static _Noreturn void become(char **argv)
{
    char name[32];

    for (unsigned number = 0;; number++) {
        char *variable;

        snprintf(name, sizeof name, "WHERRY_ENV_%u", number);
        variable = getenv(name);
        if (!variable)
            break;
        if (!strchr(variable, '=') || putenv(variable) < 0 || unsetenv(name) < 0)
            fail("cannot set the variable that %s holds", name);
    }
    correct_command_line(argv[0]);
    set_limits(); /* at last: they may leave no memory for the rest */
    execvp(argv[0], argv);
    fail("cannot run %s: %s", argv[0], strerror(errno));
}

int main(int argc, char **argv)
{
    const char *path = getenv("WHERRY_JOB"), *host;
    const struct job_node *node;
    bool with_input = true, shell = argc < 2 || strcmp(argv[1], "--exec") != 0;
    struct buffer out = {0};
    struct seals seals;
    struct jobfile job;
    char reason[WIRE_TEXT_MAX + 1], **words;
    int entry, error, socket, code;

    if (argc > 2 && strcmp(argv[1], "--environment") == 0)
        become(argv + 2);
    error = process_close_inherited(); /* else the connection may become the standard input that a launcher has closed */
    if (error < 0)
        fail("cannot open /dev/null: %s", strerror(-error));
    signal(SIGPIPE, SIG_IGN); /* a reader that has gone does not change how the command ends */
    words = shell ? skip_options(argv + (argc > 0), &with_input) : argv + 2;
    host = *words;
    if (host && !shell)
        words++;
    else if (host)
        words = skip_options(words + 1, &with_input);
    if (!host || !*words)
        fail("usage: WHERRY_JOB=FILE wherry-rsh [-n] [-l USER] HOST COMMAND...");
    if (!path)
        fail("WHERRY_JOB is not set: this agent is started by the launcher of `wherry run`");
    error = jobfile_read(path, &job, &entry);
    if (error < 0 && entry)
        fail("cannot use the job file %s, entry %d: %s", path, entry, strerror(-error));
    if (error < 0)
        fail("cannot use the job file %s: %s", path, error == -ENODATA ? "user, cwd or node is missing"
                                                                       : strerror(-error));
    node = jobfile_find_node(&job, host);
    if (!node)
        fail("no node %s in this job", host);
    socket = connect_node(node);
    prove_both(socket, node, &seals);
    queue_request(&out, &seals.to_agent, &job, words, shell);
    if (!with_input)
        append_sealed(&out, &seals.to_agent, 'I', NULL, 0);
    code = forward_io(socket, &seals, &out, with_input, reason, sizeof reason);
    if (code == FORWARD_LOST)
        fail_lost(node);
    if (code == FORWARD_REFUSED)
        fail("node %s: %s", node->name, reason);
    buffer_free(&out);
    jobfile_free(&job);
    return code;
}
