/* Who talks to the name server over its socket; the commands are in main.c. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "board.h"

#define WORD_MAX (ARGUMENT_MAX + 2)
#define ANSWER_MAX 16384

static void drop(struct client *client)
{
    close(client->fd);
    free(client->queue);
    *client = (struct client){.fd = -1};
}

/* A free place, or that of one that does not come for its answer. */
static struct client *find_place(struct board *board)
{
    for (int i = 0; i < CLIENT_MAX; i++)
        if (board->clients[i].fd < 0)
            return &board->clients[i];
    for (int i = 0; i < CLIENT_MAX; i++)
        if (board->clients[i].leaving) {
            drop(&board->clients[i]);
            return &board->clients[i];
        }
    return NULL;
}

void client_accept(struct board *board)
{
    struct client *client, guest = {0};

    guest.fd = accept4(board->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (guest.fd < 0)
        return;
    client = find_place(board);
    if (client) {
        *client = guest;
        return;
    }
    client_say(&guest, "{\"event\": \"refused\", \"code\": \"NO_CAPACITY\", \"why\": \"%d clients are connected, as many as "
                       "there can be\"}", CLIENT_MAX);
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

/* Returns how much of it is written; negative when nobody is there any more. */
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

/* Nothing more is said to it; the next read finds the end and drops it. */
static void give_up(struct client *client)
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

static void send_all(struct client *client, const char *bytes, size_t count)
{
    ssize_t sent = client->queued ? 0 : write_some(client, bytes, count);

    if (sent == (ssize_t)count)
        return;
    if (sent < 0 || client->queued + count - (size_t)sent > QUEUE_MAX || !make_room(client, count - (size_t)sent)) {
        give_up(client);
        return;
    }
    memcpy(client->queue + client->queued, bytes + sent, count - (size_t)sent);
    client->queued += count - (size_t)sent;
}

void client_write(struct client *client)
{
    ssize_t sent = write_some(client, client->queue, client->queued);

    if (sent < 0) {
        give_up(client);
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
    send_all(client, line, (size_t)count);
}

void client_say_line(struct client *client, const char *line)
{
    send_all(client, line, strlen(line));
    send_all(client, "\n", 1);
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

static void refuse(struct client *client, int error, const char *why)
{
    char escaped[6 * LINE_MAX_SIZE + 1];

    client_escape(why, strlen(why), escaped);
    client_say(client, "{\"event\": \"refused\", \"code\": \"%s\", \"why\": \"%s\"}", code_of(error), escaped);
    client_close(client);
}

/* `from`: bytes that the process has said before these. */
static void say_output(struct client *client, uint32_t process, uint64_t from, const char *bytes, size_t count)
{
    char escaped[6 * 1024 + 1];

    for (size_t at = 0; at < count; at += 1024) {
        size_t some = count - at < 1024 ? count - at : 1024;

        client_escape(bytes + at, some, escaped);
        client_say(client, "{\"event\": \"output\", \"process\": %u, \"from\": %llu, \"text\": \"%s\"}", process,
                   (unsigned long long)(from + at), escaped);
    }
}

/* What is kept of its output is said from byte `from` on. */
static void attach(struct board *board, struct client *client, uint32_t process, uint64_t from)
{
    const struct output *output = &board->outputs[process];
    uint64_t skip = from > output->dropped ? from - output->dropped : 0;

    if (skip > output->count)
        skip = output->count;
    client->attached |= 1u << process;
    say_output(client, process, output->dropped + skip, output->bytes + skip, output->count - (size_t)skip);
    board->told[process] = 0; /* if it has ended, this one is told too */
}

/* A number no process or tile has when the word is none. */
static uint32_t number(const char *word)
{
    char *end;
    unsigned long value = strtoul(word, &end, 10);

    return *word >= '0' && *word <= '9' && !*end && value < 1000 ? (uint32_t)value : 1000;
}

/* Each word is PROCESS or PROCESS:FROM, the byte of its output to begin with. All are looked at before any is attached. */
static void follow(struct board *board, struct client *client, int count, char **words)
{
    uint32_t processes[WORD_MAX];
    uint64_t from[WORD_MAX];
    bool known = count >= 2;

    for (int i = 1; known && i < count; i++) {
        char *word = words[i], *name = strsep(&word, ":");

        processes[i] = number(name);
        from[i] = word ? strtoull(word, NULL, 10) : 0;
        known = processes[i] >= 1 && processes[i] < PROCESS_MAX &&
                window_place(board->window, processes[i]).state != PLACE_FREE;
    }
    if (!known) {
        refuse(client, -ENOENT, "there is no such process");
        return;
    }
    for (int i = 1; i < count; i++)
        attach(board, client, processes[i], from[i]);
}

static void start(struct board *board, struct client *client, int count, char **words)
{
    bool is_ranks = strcmp(words[0], "ranks") == 0, attached = strcmp(words[0], "start") != 0;
    uint32_t tile = is_ranks || (count > 1 && strcmp(words[1], "any") == 0) ? NO_TILE : count > 1 ? number(words[1]) : 0;
    uint32_t ranks = is_ranks && count > 1 ? number(words[1]) : 1, processes[TILE_MAX];
    char why[LINE_MAX_SIZE];
    int error;

    if (count < 3 || ranks < 1 || ranks > TILE_MAX) {
        refuse(client, -EINVAL, is_ranks ? "1 to 16 ranks and a program are needed" : "a tile and a program are needed");
        return;
    }
    error = launch_program(board, tile, ranks, count - 2, words + 2, processes, why, sizeof(why));
    if (error < 0) {
        refuse(client, error, why);
        return;
    }
    for (uint32_t rank = 0; rank < ranks; rank++)
        client_say(client, "{\"event\": \"started\", \"process\": %u, \"rank\": %u, \"tile\": %u}", processes[rank],
                   rank, window_place(board->window, processes[rank]).tile);
    for (uint32_t rank = 0; attached && rank < ranks; rank++)
        attach(board, client, processes[rank], 0);
    if (!attached)
        client_close(client);
}

/* All are asked for before any is answered. The first that is refused ends it; those before it go on unheard. */
static void move(struct board *board, struct client *client, int count, char **words)
{
    int mode = count >= 4 && count % 2 == 0 ? moves_mode(words[1]) : -EINVAL, error = 0;
    char why[REASON_SIZE];

    if (mode < 0) {
        refuse(client, mode, "a mode (faithful, direct, handoff, precopy) and processes with a tile each are needed");
        return;
    }
    for (int i = 2; error == 0 && i < count; i += 2) {
        error = moves_ask(board, number(words[i]), number(words[i + 1]), (uint32_t)mode, why, sizeof(why));
        if (error == 0)
            client->moving |= 1u << number(words[i + 1]);
    }
    if (error < 0)
        refuse(client, error, why);
}

static void list(struct board *board, struct client *client)
{
    static const char *const states[] = {"free", "running", "ended", "lost"};
    struct window *window = board->window;
    char text[ANSWER_MAX / 2], why[6 * REASON_SIZE + 1];
    size_t at = 0;

    at += (size_t)snprintf(text, sizeof(text), "{\"event\": \"tiles\", \"tiles\": [");
    for (uint32_t tile = 0; tile < window->tile_count; tile++)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s{\"tile\": %u, \"host\": %u, \"pid\": %d, \"alive\": %s}",
                               tile ? ", " : "", tile, net_host_of_tile(board, tile), window->tiles[tile].pid,
                               atomic_load(&window->tiles[tile].alive) ? "true" : "false");
    send_all(client, text, at);
    send_all(client, "], \"processes\": [", 17);
    for (uint32_t process = 1, first = 1; process < PROCESS_MAX; process++) {
        struct location *location = &window->locations[process];
        struct place place = window_place(window, process);

        if (place.state == PLACE_FREE)
            continue;
        client_escape(location->why, strlen(location->why), why);
        at = (size_t)snprintf(text, sizeof(text),
                              "%s{\"process\": %u, \"program\": \"", first ? "" : ", ", process);
        client_escape(location->program, strlen(location->program), text + at);
        at += strlen(text + at);
        at += (size_t)snprintf(text + at, sizeof(text) - at,
                               "\", \"state\": \"%s\", \"tile\": %u, \"epoch\": %u, \"moves\": %u, \"status\": %d, "
                               "\"why\": \"%s\"}",
                               states[place.state], place.tile, place.epoch, atomic_load(&location->moves),
                               location->status, why);
        send_all(client, text, at);
        first = 0;
    }
    send_all(client, "]}\n", 3);
    client_close(client);
}

static void obey(struct board *board, struct client *client)
{
    char *words[WORD_MAX], *rest = client->line;
    int count = 0;

    for (char *word; count < WORD_MAX && (word = strsep(&rest, "\t")); )
        words[count++] = word;
    if (rest) {
        refuse(client, -EINVAL, "too many arguments: a program gets at most 15");
    } else if (strcmp(words[0], "run") == 0 || strcmp(words[0], "start") == 0 || strcmp(words[0], "ranks") == 0) {
        start(board, client, count, words);
    } else if (strcmp(words[0], "move") == 0) {
        move(board, client, count, words);
    } else if (strcmp(words[0], "ps") == 0) {
        list(board, client);
    } else if (strcmp(words[0], "loads") == 0) {
        report_tell(board, client);
        client_close(client);
    } else if (strcmp(words[0], "attach") == 0) {
        follow(board, client, count, words);
    } else if (strcmp(words[0], "await") == 0) {
        if (count != 2 || !words[1][0] || strlen(words[1]) >= NAME_SIZE)
            refuse(client, -EINVAL, "a name of 1 to 63 bytes is needed");
        else
            strcpy(client->awaits, words[1]); /* names_serve() answers */
    } else if (strcmp(words[0], "down") == 0) {
        client_say(client, "{\"event\": \"down\"}");
        client_close(client);
        board->stopping = true;
    } else {
        refuse(client, -EINVAL, "there is no such command");
    }
}

void client_read(struct board *board, struct client *client)
{
    ssize_t count = recv(client->fd, client->line + client->count, sizeof(client->line) - client->count, MSG_DONTWAIT);
    char *end;

    if (count < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (count <= 0 || client->leaving || client->attached || client->moving || client->awaits[0]) {
        drop(client); /* it is gone, or talks after its command */
        return;
    }
    client->count += (size_t)count;
    end = memchr(client->line, '\n', client->count);
    if (!end && client->count == sizeof(client->line)) {
        refuse(client, -EINVAL, "the command is too long");
        return;
    }
    if (end) {
        *end = 0;
        obey(board, client);
    }
}

static void keep_output(struct board *board, uint32_t process, const char *bytes, size_t count)
{
    struct output *output = &board->outputs[process];

    for (int i = 0; i < CLIENT_MAX; i++)
        if (board->clients[i].fd >= 0 && board->clients[i].attached >> process & 1)
            say_output(&board->clients[i], process, output->dropped + output->count, bytes, count);
    if (!output->bytes)
        output->bytes = malloc(KEPT_MAX);
    if (!output->bytes) {
        output->dropped += count;
        return;
    }
    if (output->count + count > KEPT_MAX) {
        memmove(output->bytes, output->bytes + KEPT_MAX / 2, output->count - KEPT_MAX / 2);
        output->count -= KEPT_MAX / 2;
        output->dropped += KEPT_MAX / 2;
    }
    memcpy(output->bytes + output->count, bytes, count);
    output->count += count;
}

static void tell_end(struct board *board, uint32_t process, struct place place)
{
    struct location *location = &board->window->locations[process];
    char why[6 * REASON_SIZE + 1];

    client_escape(location->why, strlen(location->why), why);
    for (int i = 0; i < CLIENT_MAX; i++) {
        struct client *client = &board->clients[i];

        if (client->fd < 0 || !(client->attached >> process & 1))
            continue;
        client_say(client, "{\"event\": \"%s\", \"process\": %u, \"status\": %d, \"moves\": %u, \"why\": \"%s\"}",
                   place.state == PLACE_LOST ? "lost" : "ended", process, location->status,
                   atomic_load(&location->moves), why);
        client->attached &= ~(1u << process);
        if (!client->attached)
            client_close(client);
    }
    board->told[process] = ++board->tellings;
    names_process_ended(board, process);
}

void client_take(struct board *board, const struct mail *mail)
{
    if (mail->from < PROCESS_MAX && mail->size <= MAIL_SIZE)
        keep_output(board, mail->from, (const char *)mail->bytes, mail->size);
}

void client_serve(struct board *board)
{
    struct place places[PROCESS_MAX];
    struct mail mail;

    /* Places first: what a process said before its end is then in the port. */
    for (uint32_t process = 1; process < PROCESS_MAX; process++)
        places[process] = window_place(board->window, process);
    while (inbox_take(board->window, CONSOLE_PROCESS, 0, &mail))
        client_take(board, &mail);
    for (uint32_t process = 1; process < PROCESS_MAX; process++)
        if (places[process].state >= PLACE_ENDED && !board->told[process])
            tell_end(board, process, places[process]);
}
