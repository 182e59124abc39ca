/*
 * See client.h. How long it tries is counted in attempts and pauses, not by a clock: the program may be frozen meanwhile,
 * and clocks continue.
 */
#include "client.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "environment.h"
#include "progress.h"
#include "wherry.h"

enum {
    SILENT_TRIES = 34,       /* without an answer: about 30 s */
    HANGING = 8,             /* tries for which one counts that waited in vain */
    BUSY_TRIES = 34,         /* with an answer `later`: about 30 s */
    PAUSE_FIRST = 50,        /* ms, doubled up to */
    PAUSE_LONGEST = 1000,
    CONNECT_MS = 3000,
    ANSWER_MS = 20000,       /* beyond the request's own wait */
    SLICE_MS = 5,            /* between two turns of the MPI's progress */
    HEAD = 1024,             /* bytes of a request beside its body */
    ANSWER_MAX = 4 << 20,    /* bytes */
    TOO_MANY = 429,
};

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local char said[512];

void client_say(const char *what, const char *why)
{
    snprintf(said, sizeof said, "%s%s%s", what, why && *why ? ": " : "", why ? why : "");
}

const char *client_said(void)
{
    return said;
}

int client_new_key(char *key)
{
    unsigned char bytes[16];

    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
        client_say("no random bytes", strerror(errno));
        return WHERRY_E_SYSTEM;
    }
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(key + 2 * i, 3, "%02x", bytes[i]);
    return WHERRY_OK;
}

/* Waits until the socket is ready. Returns 0 or -errno. */
static int wait_for(int fd, short events, int ms)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};
    int ready;

    do
        ready = poll(&poll_fd, 1, ms);
    while (ready < 0 && errno == EINTR);
    return ready < 0 ? -errno : ready == 0 ? -ETIMEDOUT : 0;
}

static int open_connection(const struct sockaddr_in *address)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), yes = 1, error = 0;
    socklen_t size = sizeof error;

    if (fd < 0)
        return -errno;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connect(fd, (const struct sockaddr *)address, sizeof *address) < 0) {
        error = errno;
        if (error == EINPROGRESS || error == EINTR)
            error = -wait_for(fd, POLLOUT, CONNECT_MS);
        if (error == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
            error = errno;
    }
    if (error == 0)
        return fd;
    close(fd);
    return -error;
}

static int send_all(int fd, const char *text, size_t count)
{
    while (count > 0) {
        ssize_t sent = send(fd, text, count, MSG_NOSIGNAL);
        int error = sent < 0 ? -errno : 0;

        if (error == -EAGAIN || error == -EINTR)
            error = wait_for(fd, POLLOUT, ANSWER_MS);
        if (error < 0)
            return error;
        text += sent > 0 ? sent : 0;
        count -= sent > 0 ? (size_t)sent : 0;
    }
    return 0;
}

/* The same for a long wait: the MPI makes progress meanwhile, if that is for this thread to do. */
static int wait_long(int fd, int ms)
{
    int error = -ETIMEDOUT;

    if (!progress_is_ours())
        return wait_for(fd, POLLIN, ms);
    for (int waited = 0; error == -ETIMEDOUT && waited < ms; waited += SLICE_MS) {
        progress_turn();
        error = wait_for(fd, POLLIN, SLICE_MS);
    }
    return error;
}

/* Reads to the end of the connection into *memory. Returns the count of bytes, or -errno. */
static ssize_t receive_all(int fd, int ms, char **memory)
{
    size_t room = 0, count = 0;

    for (;;) {
        ssize_t got;
        int error;

        if (count == room) {
            char *larger = room < ANSWER_MAX ? realloc(*memory, room ? 2 * room : 4096) : NULL;

            if (!larger)
                return -ENOMEM;
            *memory = larger;
            room = room ? 2 * room : 4096;
        }
        got = recv(fd, *memory + count, room - count, 0);
        if (got == 0)
            return (ssize_t)count;
        error = got < 0 ? -errno : 0;
        if (error == -EAGAIN || error == -EINTR)
            error = ms > ANSWER_MS ? wait_long(fd, ms) : wait_for(fd, POLLIN, ms);
        if (error < 0)
            return error;
        count += got > 0 ? (size_t)got : 0;
    }
}

/* One attempt. Returns 0 or -errno; -EAGAIN is an answer that was cut off. */
static int attempt(const struct sockaddr_in *address, const struct request *request, const char *head,
                   struct answer *answer, char **memory)
{
    int fd = open_connection(address), error;
    ssize_t count;

    if (fd < 0)
        return fd;
    error = send_all(fd, head, strlen(head));
    if (error == 0 && request->body)
        error = send_all(fd, request->body, strlen(request->body));
    count = error < 0 ? error : receive_all(fd, ANSWER_MS + 1000 * request->wait, memory);
    close(fd);
    return count < 0 ? (int)count : answer_parse(*memory, (size_t)count, answer);
}

static void nap(int *pause)
{
    struct timespec left = {.tv_sec = *pause / 1000, .tv_nsec = *pause % 1000 * 1000000L};

    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        continue;
    *pause = 2 * *pause > PAUSE_LONGEST ? PAUSE_LONGEST : 2 * *pause;
}

/* A daemon that cuts off is there, or was just now: a daemon that is gone refuses the next connection. */
static bool is_cut_off(int error)
{
    return error == -EAGAIN || error == -ECONNRESET || error == -EPIPE;
}

static int ask(const struct sockaddr_in *address, const struct request *request, const char *head,
               struct answer *answer, char **memory)
{
    int silent = 0, busy = 0, pause = PAUSE_FIRST;

    for (;;) {
        int error = attempt(address, request, head, answer, memory);

        if (error == 0 && answer->status != TOO_MANY)
            return WHERRY_OK;
        if ((error == 0 || is_cut_off(error)) && ++busy == BUSY_TRIES) {
            client_say("the daemon takes no more requests now", "");
            return WHERRY_E_BUSY;
        }
        if (error == -ENOMEM || error == -EMFILE || error == -ENFILE || error == -EPROTO) {
            client_say("the daemon cannot be asked", strerror(-error));
            return WHERRY_E_SYSTEM;
        }
        if (error < 0 && !is_cut_off(error))
            silent += error == -ETIMEDOUT ? HANGING : 1;
        if (silent >= SILENT_TRIES) {
            client_say("no daemon answers", strerror(-error));
            return WHERRY_E_UNREACHABLE;
        }
        if (error == 0)
            silent = 0;
        nap(&pause);
    }
}

int client_ask(const struct request *request, struct answer *answer, char **memory)
{
    const char *token = environment_token();
    struct sockaddr_in address;
    char head[HEAD];
    int result;

    *memory = NULL;
    if (!environment_address(&address) || !token) {
        client_say("WHERRY_SERVICE and WHERRY_TOKEN are not as Wherry set them", "");
        return WHERRY_E_ARGUMENT;
    }
    result = snprintf(head, sizeof head,
                      "%s %s HTTP/1.1\r\nHost: wherry\r\nAuthorization: Bearer %s\r\nAccept: text/plain\r\n"
                      "Connection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s%s%s\r\n",
                      request->method, request->path, token, request->body ? strlen(request->body) : 0,
                      request->key ? "Idempotency-Key: " : "", request->key ? request->key : "",
                      request->key ? "\r\n" : "");
    if (result < 0 || (size_t)result >= sizeof head) {
        client_say("the request is too long", "");
        return WHERRY_E_ARGUMENT;
    }
    pthread_mutex_lock(&one_at_a_time);
    result = ask(&address, request, head, answer, memory);
    pthread_mutex_unlock(&one_at_a_time);
    return result;
}
