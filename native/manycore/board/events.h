/* What clients hear of without asking again: output, ends of processes and of moves, names that have been linked. */
#ifndef WHERRY_MANYCORE_BOARD_EVENTS_H
#define WHERRY_MANYCORE_BOARD_EVENTS_H

#include "client.h"
#include "names.h"

struct output {
    char *bytes;
    size_t count;
    uint64_t dropped; /* bytes that it said before those that are kept */
};

struct events {
    struct window *window;
    struct clients *clients;
    struct names *names;
    struct output outputs[PROCESS_MAX];
    uint64_t told[PROCESS_MAX]; /* its end has been told, as the so many-th; 0: it has not */
    uint64_t tellings;
};

void events_init(struct events *events, struct clients *clients, struct names *names);
/* Sends a client what is kept of what the process has said, from byte `from` on, and what it says from now on. */
void events_attach(struct events *events, struct client *client, uint32_t process, uint64_t from);
/* Output of a process of another host. */
void events_output(struct events *events, const struct mail *mail);
/* A move has ended: `done` or failed. */
void events_move_ended(struct events *events, const struct move *move, bool done);
/* Tells clients what programs here have said, the ends of processes, and the names that clients wait for. */
void events_serve(struct events *events);
/* The number belongs to another process from now on. */
void events_clear(struct events *events, uint32_t process);

#endif
