/* Events pushed to clients: output, ends of processes and of moves, names that have been linked. */
#ifndef WHERRY_MANYCORE_BOARD_EVENTS_H
#define WHERRY_MANYCORE_BOARD_EVENTS_H

#include "client.h"
#include "name_service.h"

struct output {
    char *bytes;
    size_t count;
    uint64_t dropped; /* bytes of output before the kept ones */
};

struct events {
    struct shared_memory *shared;
    struct clients *clients;
    struct names *names;
    struct output outputs[PROCESS_MAX];
    uint64_t told[PROCESS_MAX]; /* number of the event that reported its end; 0: not reported */
    uint64_t tellings;
};

void events_init(struct events *events, struct clients *clients, struct names *names);
/* Sends a client the kept output of the process from byte `from` on, and its output from now on. */
void events_attach(struct events *events, struct client *client, uint32_t process, uint64_t from);
/* Output of a process of another host. */
void events_output(struct events *events, const struct mail *mail);
/* A move has ended: `done` or failed. */
void events_move_ended(struct events *events, const struct move *move, bool done);
/* Sends clients the output of programs here, the ends of processes, and the names that they wait for. */
void events_serve(struct events *events);
/* The number belongs to another process from now on. */
void events_clear(struct events *events, uint32_t process);

#endif
