/*
 * wherry-tiles, the name server and launcher of the tiles of one host: it starts the tiles, knows where every tile
 * process is (the location entries), asks for moves, and reports a process lost whose tile died with it. It runs no
 * user code and takes no part in the downtime of a move.
 *
 * Its parts, each of which knows only what is left of it; frames and events come back by the handlers that board_init()
 * gives them:
 *
 *   link  hello  clock -> net -> join -> hosts
 *                            -> processes -> relay -> state -> record -> departure, arrival -> mirror -> transfer
 *                                                                             -> directory -> moves -+
 *                            -> names, report; client -> events -----------------------------------+-> board
 *   tiles, slots                                                       board -> launch -> commands -> main
 */
#ifndef WHERRY_MANYCORE_BOARD_H
#define WHERRY_MANYCORE_BOARD_H

#include "directory.h"
#include "events.h"
#include "hosts.h"
#include "moves.h"
#include "report.h"

struct board {
    struct window *window;
    bool stopping; /* a client or a signal asks for that; net.stopping: the leader */
    struct net net;
    struct relay relay;
    struct mirror mirror;
    struct transfer transfer;
    struct directory directory;
    struct moves moves;
    struct names names;
    struct reports reports;
    struct clients clients;
    struct events events;
};

/* Connects the parts; `window` is mapped. */
void board_init(struct board *board, struct window *window);
/* One turn of everything but the clients' commands, after poll() or, without `fds`, at any time. */
void board_serve(struct board *board, const struct pollfd *fds, int count);
/* The number belongs to another process from now on, of which nothing is known. */
void board_clear_process(struct board *board, uint32_t process);

#endif
