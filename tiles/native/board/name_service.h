/*
 * The names, and other requests of programs to the name server: a mailbox message each, answered by one. A name
 * belongs to the process that linked it until that unlinks it or ends, wherever it moves to.
 *
 * Ranks live and die together: when one aborts, faults or is lost with its tile, the others are ended.
 */
#ifndef WHERRY_MANYCORE_BOARD_NAME_SERVICE_H
#define WHERRY_MANYCORE_BOARD_NAME_SERVICE_H

#include "hosts/network.h"

#define NAMES_MAX 256

struct name {
    char name[NAME_SIZE]; /* empty: free */
    uint32_t process;
    int port;
};

struct names {
    struct net *net;
    struct shared_memory *shared;
    struct name names[NAMES_MAX];
    struct server_request awaits[PROCESS_MAX]; /* a process that waits for a name; an empty name: it does not */
};

void names_init(struct names *names, struct net *net);
/* Executes the requests of programs here, and answers processes that waited for a name. */
void names_serve(struct names *names);
/* A request of a process of another host. */
void names_request(struct names *names, const struct mail *mail);
const struct name *names_find(const struct names *names, const char *name);
/* Removes the names and waits of a process that has just ended or been lost; ends the other ranks if they need it. */
void names_process_ended(struct names *names, uint32_t process);
/* The number belongs to another process from now on. */
void names_clear(struct names *names, uint32_t process);

#endif
