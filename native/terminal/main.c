/*
 * wherry-terminal: runs a program on a terminal of its own, for a user who is elsewhere.
 *
 *   wherry-terminal ROWS COLUMNS PROGRAM ARGUMENT...
 *
 * Its standard input is in frames (frames.h); the program's output to its terminal goes to the standard output. It
 * ends as the program does: with its exit code, or by the same signal. When the input ends before, the user is gone:
 * the terminal is hung up, which sends SIGHUP to the program.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "frames.h"
#include "wherry/process.h"
#include "wherry/number.h"

enum {
    CHUNK = 16 << 10,
    LINGER_MS = 200, /* a descendant in the background may keep the terminal open for ever */
    HANGUP_MS = 5000, /* for a program that was hung up, before it is killed */
};

struct relay {
    int master; /* -1: hung up */
    pid_t program;
    uint8_t in[TERMINAL_FRAME_MAX + CHUNK];
    size_t have, typed; /* bytes in `in`; bytes of the D frame at its head that the terminal has taken */
};

static int wakeup[2];

static void on_child(int number)
{
    int saved = errno;

    (void)number;
    (void)!write(wakeup[1], "", 1);
    errno = saved;
}

static _Noreturn void fail(const char *what, const char *object, int error)
{
    fprintf(stderr, "wherry-terminal: cannot %s %s: %s\n", what, object, strerror(error));
    exit(127);
}

static uint16_t number_or_usage(const char *text)
{
    uint64_t value;

    if (number_parse(text, strlen(text), UINT16_MAX, &value) < 0) {
        fputs("usage: wherry-terminal ROWS COLUMNS PROGRAM ARGUMENT...\n", stderr);
        exit(2);
    }
    return (uint16_t)value;
}

static void resize(int terminal, uint16_t rows, uint16_t columns)
{
    struct winsize size = {.ws_row = rows, .ws_col = columns};

    ioctl(terminal, TIOCSWINSZ, &size);
}

static _Noreturn void run(int terminal, char **words)
{
    setsid();
    if (ioctl(terminal, TIOCSCTTY, 0) < 0)
        fail("control", "the terminal", errno);
    for (int fd = 0; fd < 3; fd++)
        dup2(terminal, fd);
    process_reset_signals();
    execvp(words[0], words);
    fail("run", words[0], errno);
}

static void start(struct relay *relay, uint16_t rows, uint16_t columns, char **words)
{
    struct sigaction action = {.sa_handler = on_child, .sa_flags = SA_RESTART};
    int terminal;

    relay->master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (relay->master < 0 || grantpt(relay->master) < 0 || unlockpt(relay->master) < 0)
        fail("open", "a terminal on this node", errno);
    terminal = open(ptsname(relay->master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (terminal < 0 || pipe2(wakeup, O_CLOEXEC | O_NONBLOCK) < 0)
        fail("open", "a terminal on this node", errno);
    resize(terminal, rows, columns);
    sigaction(SIGCHLD, &action, NULL);
    relay->program = fork();
    if (relay->program < 0)
        fail("run", words[0], errno);
    if (relay->program == 0)
        run(terminal, words);
    close(terminal);
    fcntl(relay->master, F_SETFL, O_NONBLOCK);
}

static void hang_up(struct relay *relay)
{
    if (relay->master >= 0)
        close(relay->master);
    relay->master = -1;
}

/* Obeys whole frames. Returns false while the terminal takes no more of the typed bytes. */
static bool obey(struct relay *relay)
{
    struct terminal_frame frame;
    ssize_t size;

    while (relay->master >= 0 && (size = terminal_parse_frame(relay->in, relay->have, &frame)) != 0) {
        if (size < 0) {
            hang_up(relay);
            return true;
        }
        if (frame.type == 'W')
            resize(relay->master, frame.rows, frame.columns);
        while (frame.type == 'D' && relay->typed < frame.length) {
            ssize_t count = write(relay->master, frame.bytes + relay->typed, frame.length - relay->typed);

            if (count < 0 && errno == EAGAIN)
                return false;
            if (count < 0 && errno != EINTR)
                break; /* the program has closed its terminal */
            relay->typed += count > 0 ? (size_t)count : 0;
        }
        relay->typed = 0;
        relay->have -= (size_t)size;
        memmove(relay->in, relay->in + size, relay->have);
    }
    return true;
}

static void read_input(struct relay *relay)
{
    ssize_t count = read(STDIN_FILENO, relay->in + relay->have, sizeof relay->in - relay->have);

    if (count > 0)
        relay->have += (size_t)count;
    else if (count == 0 || errno != EINTR)
        hang_up(relay);
}

/* Passes on one piece of the program's output. Returns false when nothing waits. */
static bool pass_output(struct relay *relay)
{
    uint8_t bytes[CHUNK];
    ssize_t count = read(relay->master, bytes, sizeof bytes);

    if (count <= 0)
        return count < 0 && errno == EINTR;
    if (process_write_all(STDOUT_FILENO, bytes, (size_t)count) < 0)
        hang_up(relay);
    return true;
}

/* The wait status of the program, when it has ended. */
static int relay_until_end(struct relay *relay)
{
    int64_t killed = 0;
    bool room = true;
    int status;

    while (waitpid(relay->program, &status, WNOHANG) != relay->program) {
        struct pollfd polls[3] = {
            {.fd = wakeup[0], .events = POLLIN},
            {.fd = room && relay->master >= 0 ? STDIN_FILENO : -1, .events = POLLIN},
            {.fd = relay->master, .events = (short)(POLLIN | (room ? 0 : POLLOUT))},
        };
        char drain[16];

        if (relay->master < 0 && !killed)
            killed = process_now_ms() + HANGUP_MS;
        if (relay->master < 0 && process_now_ms() >= killed)
            kill(-relay->program, SIGKILL);
        poll(polls, 3, relay->master < 0 ? LINGER_MS : -1);
        while (read(wakeup[0], drain, sizeof drain) > 0)
            continue;
        if (polls[1].revents)
            read_input(relay);
        room = obey(relay);
        if (relay->master >= 0 && polls[2].revents && !pass_output(relay) && polls[2].revents & POLLHUP)
            poll(NULL, 0, 1); /* nobody has the terminal open: either the program opens it again, or it ends */
    }
    return status;
}

int main(int argc, char **argv)
{
    static struct relay relay = {.master = -1};
    int64_t end;
    int status;

    if (argc < 4)
        number_or_usage("");
    signal(SIGPIPE, SIG_IGN);
    start(&relay, number_or_usage(argv[1]), number_or_usage(argv[2]), argv + 3);
    status = relay_until_end(&relay);
    for (end = process_now_ms() + LINGER_MS; relay.master >= 0 && process_now_ms() < end && pass_output(&relay);)
        continue;
    if (WIFSIGNALED(status)) {
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 127;
}
