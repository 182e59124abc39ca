#include "placement.h"

#include "../inside/answer.h"
#include "../inside/environment.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The waits are added up, not timed by a clock: the rank may be frozen meanwhile, and clocks continue. */
enum { SLICE_MS = 20, PATIENCE_MS = 1000, ANSWER = 4096, REQUEST = 4096, TEXT = 400 };

bool placement_is_wanted(void)
{
    return getenv("WHERRY_PLACE_SPAWNED") && environment_is_inside();
}

void placement_say(const char *what, const char *why)
{
    dprintf(STDERR_FILENO, "wherry: %s: %s\n", what, why);
}

/* A value for a query; a character without use in names of hosts becomes a question mark, which is in none either. */
static void quote(const char *text, char *to, size_t room)
{
    static const char plain[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-_,:";
    size_t at = 0;

    for (; *text && at + 4 < room; text++) {
        if (*text == ' ')
            continue;
        if (strchr(plain, *text)) {
            to[at++] = *text;
        } else {
            memcpy(to + at, "%3F", 3);
            at += 3;
        }
    }
    to[at] = 0;
}

/* A signal costs a millisecond of the patience, as a profiler's timer may come each millisecond. */
static bool wait_for(int fd, short events, int *patience)
{
    struct pollfd one = {.fd = fd, .events = events};

    while (*patience > 0) {
        int ready = poll(&one, 1, SLICE_MS);

        if (ready > 0)
            return true;
        if (ready < 0 && errno != EINTR)
            return false;
        *patience -= ready < 0 ? 1 : SLICE_MS;
    }
    errno = ETIMEDOUT;
    return false;
}

/* Sends the request and reads to the connection's end. The count of bytes, or -1 with errno. */
static ssize_t exchange(int fd, const struct sockaddr_in *address, const char *request, char *answer)
{
    int patience = PATIENCE_MS, error = 0;
    socklen_t size = sizeof error;
    size_t left = strlen(request), count = 0;
    ssize_t done;

    if (connect(fd, (const struct sockaddr *)address, sizeof *address) < 0) {
        if (errno != EINPROGRESS && errno != EINTR)
            return -1;
        if (!wait_for(fd, POLLOUT, &patience) || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
            return -1;
        if (error) {
            errno = error;
            return -1;
        }
    }
    while (left > 0) {
        done = send(fd, request, left, MSG_NOSIGNAL);
        if (done < 0 && errno != EAGAIN && errno != EINTR)
            return -1;
        if (done < 0 && !wait_for(fd, POLLOUT, &patience))
            return -1;
        request += done > 0 ? done : 0;
        left -= done > 0 ? (size_t)done : 0;
    }
    while (count < ANSWER) {
        done = recv(fd, answer + count, ANSWER - count, 0);
        if (done == 0)
            return (ssize_t)count;
        if (done < 0 && errno != EAGAIN && errno != EINTR)
            return -1;
        if (done < 0 && !wait_for(fd, POLLIN, &patience))
            return -1;
        count += done > 0 ? (size_t)done : 0;
    }
    errno = EMSGSIZE;
    return -1;
}

bool placement_ask(long processes, const char *host, char hosts[PLACEMENT_ROOM])
{
    const char *failed = *host ? "the info key host is left to the MPI" : "spawned processes start where the MPI puts them";
    const char *token = environment_token();
    char quoted[3 * PLACEMENT_NAMES], request[REQUEST], bytes[ANSWER], what[TEXT / 2], why[TEXT];
    struct sockaddr_in address;
    struct answer answer = {0};
    ssize_t count = -1;
    int length, fd;

    quote(host, quoted, sizeof quoted);
    length = snprintf(request, sizeof request,
                      "GET /v1/self/places?processes=%ld&room=%d&host=%s HTTP/1.1\r\nHost: wherry\r\n"
                      "Authorization: Bearer %s\r\nAccept: text/plain\r\nConnection: close\r\n\r\n",
                      processes, PLACEMENT_ROOM - 1, quoted, token ? token : "");
    if (!token || length < 0 || (size_t)length >= sizeof request || !environment_address(&address)) {
        placement_say(failed, "WHERRY_SERVICE and WHERRY_TOKEN are not as Wherry set them");
        return false;
    }
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        count = exchange(fd, &address, request, bytes);
        length = errno;
        close(fd);
        errno = length;
    }
    if (count < 0 || answer_parse(bytes, (size_t)count, &answer)) {
        snprintf(why, sizeof why, "the daemon does not answer (%s)", count < 0 ? strerror(errno) : "cut off");
        placement_say(failed, why);
        return false;
    }
    if (answer.status == 200 && answer_text(&answer, "hosts", hosts, PLACEMENT_ROOM))
        return true;
    answer_text(&answer, "what", what, sizeof what);
    length = snprintf(why, sizeof why, "%s; ", what);
    answer_text(&answer, "why", why + length, sizeof why - (size_t)length);
    placement_say(failed, why);
    return false;
}
