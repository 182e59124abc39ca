/*
 * wherry-tiles, the name server and launcher of the tiles of one host: it starts the tiles, knows where every tile
 * process is (the location entries), asks for moves, and reports a process lost whose tile died with it. It runs no
 * user code and takes no part in the downtime of a move.
 */
#ifndef WHERRY_MANYCORE_BOARD_H
#define WHERRY_MANYCORE_BOARD_H

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

#include "../window.h"
#include "net.h"

#define CLIENT_MAX 32
#define LINE_MAX_SIZE 8192 /* bytes of one command */
#define NAMES_MAX 256
#define KEPT_MAX (1 << 20) /* bytes of a process's output that are kept for who attaches late */
#define QUEUE_MAX (8 * KEPT_MAX) /* what is kept, with every byte escaped, is less */

/*
 * What a client does not read at once waits for it here: the name server waits for nobody, as all hosts would wait with
 * it. Who lets more than QUEUE_MAX wait is dropped.
 */
struct client {
    int fd; /* -1: free */
    char *queue;
    size_t queued, room;
    bool leaving; /* it has its answer, and is closed when that has been written */
    char line[LINE_MAX_SIZE];
    size_t count;
    uint32_t attached; /* bit N: the output of process N goes there */
    uint32_t moving;   /* bit N: it waits for the move to tile N */
    char awaits[NAME_SIZE]; /* the name it waits for; empty: none */
};

struct output {
    char *bytes;
    size_t count;
    uint64_t dropped; /* bytes that it said before those that are kept */
};

struct name {
    char name[NAME_SIZE]; /* empty: free */
    uint32_t process;
    int port;
};

struct board {
    struct window *window;
    int window_fd, event_fd, signal_fd, listen_fd;
    const char *socket_path;
    bool stopping;
    struct client clients[CLIENT_MAX];
    struct output outputs[PROCESS_MAX];
    uint64_t told[PROCESS_MAX];    /* its end has been told to who was attached, as the so many-th; 0: it has not */
    uint64_t tellings;
    struct name names[NAMES_MAX];
    struct server_request awaits[PROCESS_MAX]; /* a process that waits for a name; an empty name: it does not */
    struct net net;                /* the other hosts, if there are any */
    bool wished[TILE_MAX];         /* the move to this tile was the process's own wish */
};

/* launch.c */
int launch_tiles(struct board *board);
void launch_stop(struct board *board);
/* Takes note of tiles that died: their processes are lost, their moves end. */
void launch_reap(struct board *board);
/*
 * Starts a program as so many ranks; `tile` NO_TILE is any free one for each. Returns 0 and the processes, or negative
 * errno and the reason in `why`; nothing has been started then.
 */
int launch_program(struct board *board, uint32_t tile, uint32_t ranks, int argc, char *const *argv,
                   uint32_t processes[TILE_MAX], char *why, size_t room);

/* names.c */
/* Answers the requests of programs, and what waits for a name; ends ranks whose program was aborted. */
void names_serve(struct board *board);
/* A request, and output, of a process of another host. */
void names_take(struct board *board, const struct mail *mail);
void client_take(struct board *board, const struct mail *mail);
/* Has the tile of a process end it. */
void names_end_process(struct board *board, uint32_t process, int status, const char *why);
/* What a process leaves behind that has just ended or been lost. */
void names_process_ended(struct board *board, uint32_t process);

/* moves.c */
/* Asks for a move. Returns 0 or negative errno with the reason in `why`. */
int moves_ask(struct board *board, uint32_t process, uint32_t to, uint32_t mode, char *why, size_t room);
/* Answers the moves that have ended, and asks for those that processes wish. */
void moves_serve(struct board *board);
/* Whether there is a move that has not been told yet. */
bool moves_is_under_way(const struct board *board);
/* Tells a process, wherever it is, that its wish to move is refused. */
void moves_answer(struct board *board, uint32_t process, int error);
bool moves_reserve_slot(const struct board *board, uint32_t *slot);
/* Whether a tile still works with the record of the last move to this one. */
bool moves_is_in_hand(const struct board *board, uint32_t to);
bool moves_is_free(const struct board *board, uint32_t tile);
int moves_mode(const char *name);

/* client.c */
void client_accept(struct board *board);
void client_read(struct board *board, struct client *client);
/* Writes what waits for it. */
void client_write(struct client *client);
/* When it has got its answer. */
void client_close(struct client *client);
void client_say(struct client *client, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same, of any length. */
void client_say_line(struct client *client, const char *line);
/* Takes what programs have said and tells it, and their ends, to who is attached. */
void client_serve(struct board *board);
/* The bytes as the inside of a JSON string; bytes beyond ASCII are taken as Latin-1. `room` >= 6 * count + 1. */
void client_escape(const char *bytes, size_t count, char *to);

#endif
