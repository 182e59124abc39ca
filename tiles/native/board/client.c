/* See client.h. */
#include "client.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_MAX 16384

void client_init(struct clients *clients)
{
    clients->listen_fd = -1;
    for (int i = 0; i < CLIENT_MAX; i++)
        clients->all[i].fd = -1;
}

static void drop(struct client *client)
{
    close(client->fd);
    free(client->queue);
    *client = (struct client){.fd = -1};
}

/* A free entry, or that of a client that does not read its last answer. */
static struct client *find_place(struct clients *clients)
{
    for (int i = 0; i < CLIENT_MAX; i++)
        if (clients->all[i].fd < 0)
            return &clients->all[i];
    for (int i = 0; i < CLIENT_MAX; i++)
        if (clients->all[i].leaving) {
            drop(&clients->all[i]);
            return &clients->all[i];
        }
    return NULL;
}

void client_accept(struct clients *clients)
{
    struct client *client, guest = {0};

    guest.fd = accept4(clients->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (guest.fd < 0)
        return;
    client = find_place(clients);
    if (client) {
        *client = guest;
        return;
    }
    client_say(&guest, "{\"event\": \"refused\", \"code\": \"NO_CAPACITY\", \"why\": \"%d clients are connected, "
                       "as many as there can be\"}", CLIENT_MAX);
    drop(&guest);
}

void client_close(struct client *client)
{
    client->attached = client->moving = 0;
    client->awaits[0] = 0;
    client->leaving = true;
    if (!client->queued)
        drop(client);
}

void client_escape(const char *bytes, size_t count, char *to)
{
    for (; count--; bytes++) {
        unsigned char byte = (unsigned char)*bytes;

        if (byte >= 0x20 && byte < 0x7f && byte != '"' && byte != '\\')
            *to++ = (char)byte;
        else
            to += sprintf(to, "\\u%04x", byte);
    }
    *to = 0;
}

/* Returns the bytes written; negative errno when the client has gone. */
static ssize_t write_some(const struct client *client, const char *bytes, size_t count)
{
    size_t done = 0;

    while (done < count) {
        ssize_t sent = send(client->fd, bytes + done, count - done, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent < 0 && errno == EAGAIN)
            break;
        if (sent < 0 && errno != EINTR)
            return -errno;
        done += sent > 0 ? (size_t)sent : 0;
    }
    return (ssize_t)done;
}

/* Sends nothing more; the next read finds the end of the connection and drops the client. */
static void cut_off(struct client *client)
{
    shutdown(client->fd, SHUT_RDWR);
    client->queued = 0;
}

static bool make_room(struct client *client, size_t count)
{
    size_t room = client->room ? client->room : ANSWER_MAX;
    char *queue;

    while (room < client->queued + count)
        room *= 2;
    queue = room > client->room ? realloc(client->queue, room) : client->queue;
    if (!queue)
        return false;
    client->queue = queue;
    client->room = room;
    return true;
}

void client_send(struct client *client, const char *bytes, size_t count)
{
    ssize_t sent = client->queued ? 0 : write_some(client, bytes, count);

    if (sent == (ssize_t)count)
        return;
    if (sent < 0 || client->queued + count - (size_t)sent > QUEUE_MAX || !make_room(client, count - (size_t)sent)) {
        cut_off(client);
        return;
    }
    memcpy(client->queue + client->queued, bytes + sent, count - (size_t)sent);
    client->queued += count - (size_t)sent;
}

void client_write(struct client *client)
{
    ssize_t sent = write_some(client, client->queue, client->queued);

    if (sent < 0) {
        cut_off(client);
        return;
    }
    client->queued -= (size_t)sent;
    memmove(client->queue, client->queue + sent, client->queued);
    if (client->queued)
        return;
    if (client->leaving) {
        drop(client);
        return;
    }
    free(client->queue);
    client->queue = NULL;
    client->room = 0;
}

void client_say(struct client *client, const char *format, ...)
{
    char line[ANSWER_MAX];
    va_list words;
    int count;

    va_start(words, format);
    count = vsnprintf(line, sizeof(line) - 1, format, words);
    va_end(words);
    if (count > (int)sizeof(line) - 2)
        count = (int)sizeof(line) - 2;
    line[count++] = '\n';
    client_send(client, line, (size_t)count);
}

static const char *code_of(int error)
{
    switch (-error) {
    case ENOENT:
    case ESRCH:
        return "NOT_FOUND";
    case EINVAL:
        return "USAGE";
    case ENOEXEC:
    case EFBIG:
        return "INVALID_FILE";
    case EBUSY:
    case EAGAIN:
        return "NO_CAPACITY";
    case EACCES:
        return "PERMISSION";
    default:
        return "WRONG_STATE";
    }
}

void client_refuse(struct client *client, int error, const char *why)
{
    char escaped[6 * LINE_MAX_SIZE + 1];

    client_escape(why, strlen(why), escaped);
    client_say(client, "{\"event\": \"refused\", \"code\": \"%s\", \"why\": \"%s\"}", code_of(error), escaped);
    client_close(client);
}

char *client_read(struct client *client)
{
    ssize_t count = recv(client->fd, client->line + client->count, sizeof(client->line) - client->count, MSG_DONTWAIT);
    char *end;

    if (count < 0 && (errno == EINTR || errno == EAGAIN))
        return NULL;
    if (count <= 0 || client->leaving || client->attached || client->moving || client->awaits[0]) {
        drop(client); /* it has gone, or sends more than its command */
        return NULL;
    }
    client->count += (size_t)count;
    end = memchr(client->line, '\n', client->count);
    if (!end && client->count == sizeof(client->line))
        client_refuse(client, -EINVAL, "the command is too long");
    if (!end)
        return NULL;
    *end = 0;
    return client->line;
}
