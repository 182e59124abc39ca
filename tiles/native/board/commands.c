/* See commands.h. */
#include "commands.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../shared/mesh.h"
#include "launch.h"

#define WORD_MAX (ARGUMENT_MAX + 2)
#define TEXT_MAX 8192 /* bytes of a part of an answer */

/* 1000, which is no process or tile, when the word is no number. */
static uint32_t number(const char *word)
{
    char *end;
    unsigned long value = strtoul(word, &end, 10);

    return *word >= '0' && *word <= '9' && !*end && value < 1000 ? (uint32_t)value : 1000;
}

/* Each word is PROCESS or PROCESS:FROM, the byte of its output to begin with. All are read before any is attached. */
static void attach(struct board *board, struct client *client, int count, char **words)
{
    uint32_t processes[WORD_MAX];
    uint64_t from[WORD_MAX];
    bool known = count >= 2;

    for (int i = 1; known && i < count; i++) {
        char *word = words[i], *name = strsep(&word, ":");

        processes[i] = number(name);
        from[i] = word ? strtoull(word, NULL, 10) : 0;
        known = processes[i] >= 1 && processes[i] < PROCESS_MAX &&
                shared_place(board->shared, processes[i]).state != PLACE_FREE;
    }
    if (!known) {
        client_refuse(client, -ENOENT, "there is no such process");
        return;
    }
    for (int i = 1; i < count; i++)
        events_attach(&board->events, client, processes[i], from[i]);
}

static void start(struct board *board, struct client *client, int count, char **words)
{
    bool is_ranks = strcmp(words[0], "ranks") == 0, attached = strcmp(words[0], "start") != 0;
    bool any = is_ranks || (count > 1 && strcmp(words[1], "any") == 0);
    uint32_t tile = any ? NO_TILE : count > 1 ? number(words[1]) : 0;
    uint32_t ranks = is_ranks && count > 1 ? number(words[1]) : 1, processes[TILE_MAX];
    char why[LINE_MAX_SIZE];
    int error;

    if (count < 3 || ranks < 1 || ranks > TILE_MAX) {
        client_refuse(client, -EINVAL,
                      is_ranks ? "1 to 16 ranks and a program are needed" : "a tile and a program are needed");
        return;
    }
    error = launch_program(board, tile, ranks, count - 2, words + 2, processes, why, sizeof(why));
    if (error < 0) {
        client_refuse(client, error, why);
        return;
    }
    for (uint32_t rank = 0; rank < ranks; rank++)
        client_say(client, "{\"event\": \"started\", \"process\": %u, \"rank\": %u, \"tile\": %u}", processes[rank],
                   rank, shared_place(board->shared, processes[rank]).tile);
    for (uint32_t rank = 0; attached && rank < ranks; rank++)
        events_attach(&board->events, client, processes[rank], 0);
    if (!attached)
        client_close(client);
}

/*
 * All are asked for before any is answered. When one is refused, so is the command; those before it run unreported.
 */
static void move(struct board *board, struct client *client, int count, char **words)
{
    int mode = count >= 4 && count % 2 == 0 ? moves_mode(words[1]) : -EINVAL, error = 0;
    char why[REASON_SIZE];

    if (mode < 0) {
        client_refuse(client, mode,
                      "a mode (faithful, direct, handoff, precopy) and processes with a tile each are needed");
        return;
    }
    for (int i = 2; error == 0 && i < count; i += 2) {
        error = moves_ask(&board->moves, number(words[i]), number(words[i + 1]), (uint32_t)mode, why, sizeof(why));
        if (error == 0)
            client->moving |= 1u << number(words[i + 1]);
    }
    if (error < 0)
        client_refuse(client, error, why);
}

/* Ends a tile's entry, with its column and row where there is a mesh. */
static size_t print_place(struct board *board, uint32_t tile, char *text, size_t room)
{
    uint32_t width = board->shared->mesh_width, number = 0;

    if (!width)
        return (size_t)snprintf(text, room, "}");
    for (uint32_t before = 0; before < tile; before++)
        number += net_host_of_tile(&board->net, before) == net_host_of_tile(&board->net, tile);
    return (size_t)snprintf(text, room, ", \"place\": [%u, %u]}", number % width, number / width);
}

static void list(struct board *board, struct client *client)
{
    static const char *const states[] = {"free", "running", "ended", "lost"};
    struct shared_memory *shared = board->shared;
    char text[TEXT_MAX], why[6 * REASON_SIZE + 1], mesh[24] = "";
    size_t at = 0;

    if (mesh_is_declared(shared))
        snprintf(mesh, sizeof(mesh), "%ux%u", shared->mesh_width, shared->mesh_height);
    at += (size_t)snprintf(text, sizeof(text), "{\"event\": \"tiles\", \"tiles\": [");
    for (uint32_t tile = 0; tile < shared->tile_count; tile++) {
        at += (size_t)snprintf(text + at, sizeof(text) - at,
                               "%s{\"tile\": %u, \"host\": %u, \"pid\": %d, \"alive\": %s",
                               tile ? ", " : "", tile, net_host_of_tile(&board->net, tile), shared->tiles[tile].pid,
                               atomic_load(&shared->tiles[tile].alive) ? "true" : "false");
        at += print_place(board, tile, text + at, sizeof(text) - at);
    }
    at += (size_t)snprintf(text + at, sizeof(text) - at, "], \"mesh\": \"%s\", \"hop_ns\": %u, \"processes\": [", mesh,
                           shared->hop_ns);
    client_send(client, text, at);
    for (uint32_t process = 1, first = 1; process < PROCESS_MAX; process++) {
        struct location *location = &shared->locations[process];
        struct place place = shared_place(shared, process);

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
        client_send(client, text, at);
        first = 0;
    }
    client_send(client, "]}\n", 3);
    client_close(client);
}

static void tell_loads(struct board *board, struct client *client)
{
    static char text[REPORT_ROOM];

    report_format(&board->reports, text);
    client_send(client, text, strlen(text));
    client_send(client, "\n", 1);
    client_close(client);
}

static void execute(struct board *board, struct client *client, char *line)
{
    char *words[WORD_MAX], *rest = line;
    int count = 0;

    for (char *word; count < WORD_MAX && (word = strsep(&rest, "\t")); )
        words[count++] = word;
    if (rest) {
        client_refuse(client, -EINVAL, "too many arguments: a program gets at most 15");
    } else if (strcmp(words[0], "run") == 0 || strcmp(words[0], "start") == 0 || strcmp(words[0], "ranks") == 0) {
        start(board, client, count, words);
    } else if (strcmp(words[0], "move") == 0) {
        move(board, client, count, words);
    } else if (strcmp(words[0], "ps") == 0) {
        list(board, client);
    } else if (strcmp(words[0], "loads") == 0) {
        tell_loads(board, client);
    } else if (strcmp(words[0], "attach") == 0) {
        attach(board, client, count, words);
    } else if (strcmp(words[0], "await") == 0) {
        if (count != 2 || !words[1][0] || strlen(words[1]) >= NAME_SIZE)
            client_refuse(client, -EINVAL, "a name of 1 to 63 bytes is needed");
        else
            strcpy(client->awaits, words[1]); /* events_serve() answers */
    } else if (strcmp(words[0], "down") == 0) {
        client_say(client, "{\"event\": \"down\"}");
        client_close(client);
        board->stopping = true;
    } else {
        client_refuse(client, -EINVAL, "there is no such command");
    }
}

void commands_read(struct board *board, struct client *client)
{
    char *line = client_read(client);

    if (line)
        execute(board, client, line);
}
