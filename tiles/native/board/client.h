/*
 * Connections to the name server's socket: one command each, answers as JSON lines (main.c).
 *
 * Lines that a client has not read are queued: the name server waits for no client, as all hosts would wait with it.
 * A client that lets more than QUEUE_MAX bytes wait is dropped.
 */
#ifndef WHERRY_MANYCORE_BOARD_CLIENT_H
#define WHERRY_MANYCORE_BOARD_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../shared/shared_memory.h"

#define CLIENT_MAX 32
#define LINE_MAX_SIZE 8192 /* bytes of one command */
#define KEPT_MAX (1 << 20) /* bytes of a process's output that are kept for clients that attach late */
#define QUEUE_MAX (8 * KEPT_MAX) /* kept output is less, with every byte escaped */

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

struct clients {
    int listen_fd;
    struct client all[CLIENT_MAX];
};

/* No client is connected. */
void client_init(struct clients *clients);
void client_accept(struct clients *clients);
/* Reads. Returns the command without its end, once, when all of it has come; NULL otherwise. */
char *client_read(struct client *client);
/* Writes queued bytes. */
void client_write(struct client *client);
/* Closes the connection when everything has been written. */
void client_close(struct client *client);
/* Sends a line; a longer one than 16 KiB is cut. */
void client_say(struct client *client, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Sends bytes as they are. */
void client_send(struct client *client, const char *bytes, size_t count);
/* Answers that the command is refused, and closes the connection. */
void client_refuse(struct client *client, int error, const char *why);
/* The bytes as the inside of a JSON string; bytes beyond ASCII are taken as Latin-1. `room` >= 6 * count + 1. */
void client_escape(const char *bytes, size_t count, char *to);

#endif
